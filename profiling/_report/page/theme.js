// Light, dark, or as the system has it.

function makeTheme() {
  const button = byId("theme"), words = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" };
  const keep = (value) => { try { localStorage.setItem("spmd-theme", value); } catch { /* a page without storage */ } };
  const kept = () => { try { return localStorage.getItem("spmd-theme"); } catch { return null; } };
  const set = (value) => {
    document.documentElement.dataset.theme = value;
    button.textContent = words[value];
    for (const listener of themeListeners) listener();
  };
  button.hidden = false;
  button.onclick = () => {
    const order = ["auto", "light", "dark"];
    const next = order[(order.indexOf(document.documentElement.dataset.theme) + 1) % 3];
    keep(next);
    set(next);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change",
    () => set(document.documentElement.dataset.theme));
  set(words[kept()] ? kept() : "auto");
}
