// Mouse, touch and keys of the timeline, which is `t`: see the end of `makeTimeline`.
function listenToTimeline(t, canvas, strip) {
  const pointers = new Map();
  let moved = 0, lastScroll = 0, pinch = 0;
  window.addEventListener("scroll", () => { lastScroll = performance.now(); }, { passive: true });

  canvas.addEventListener("wheel", (event) => {
    // A page that is being scrolled goes on scrolling; fully out, so does the wheel.
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const lines = event.deltaMode === 1 ? 16 : 1;
    if (performance.now() - lastScroll < 250) return;
    if (!sideways && t.isWhole() && event.deltaY > 0) return;
    event.preventDefault();
    if (sideways || event.shiftKey) {
      t.pan(((event.deltaX || event.deltaY) * lines) / t.view.width);
    } else {
      t.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * lines * 0.002))), event.offsetX);
    }
    t.unhover();
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event.offsetX);
    moved = 0;
    pinch = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (before === undefined) {
      t.hover(event.offsetX, event.offsetY, event.clientX, event.clientY);
      return;
    }
    pointers.set(event.pointerId, event.offsetX);
    moved += Math.abs(event.offsetX - before);
    if (pointers.size > 1) {
      const [a, b] = [...pointers.values()], apart = Math.abs(a - b) + 1;
      if (pinch) t.zoom(pinch / apart, (a + b) / 2);
      pinch = apart;
    } else if (moved > 3) {
      t.pan((before - event.offsetX) / t.view.width);
      t.unhover();
      canvas.classList.add("dragged");
    }
  });
  const release = (event) => {
    pointers.delete(event.pointerId);
    canvas.classList.remove("dragged");
  };
  canvas.addEventListener("pointerup", (event) => {
    release(event);
    if (moved > 3) return;
    const found = t.hit(event.offsetX, event.offsetY).event;
    if (found >= 0) t.open(found); else t.close();
  });
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", t.unhover);
  canvas.addEventListener("dblclick", (event) => {
    const found = t.hit(event.offsetX, event.offsetY).event;
    if (found >= 0) t.jump(found);
  });

  const stripTo = (event) => {
    const half = (t.view.to - t.view.from) / 2, at = (event.offsetX / t.view.width) * t.total;
    t.look(at - half, at + half);
  };
  strip.addEventListener("pointerdown", (event) => {
    strip.setPointerCapture(event.pointerId);
    if (t.isWhole()) t.zoom(0.1);
    stripTo(event);
  });
  strip.addEventListener("pointermove", (event) => { if (event.buttons) stripTo(event); });

  const keys = {
    "+": () => t.zoom(0.6), "=": () => t.zoom(0.6), "-": () => t.zoom(1 / 0.6),
    ArrowUp: () => t.zoom(0.6), ArrowDown: () => t.zoom(1 / 0.6),
    ArrowLeft: () => t.pan(-0.2), ArrowRight: () => t.pan(0.2),
    Home: () => t.look(0, t.view.to - t.view.from), End: () => t.look(t.total - (t.view.to - t.view.from), t.total),
    0: () => t.look(0, t.total),
    n: () => t.stepTo("communication", 1), p: () => t.stepTo("communication", -1),
    ".": () => t.stepTo("compute", 1),
    ",": () => t.stepTo("compute", -1),
    Escape: t.close,
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  byId("zoom-in").onclick = keys["+"];
  byId("zoom-out").onclick = keys["-"];
  byId("zoom-all").onclick = keys[0];
  byId("next").onclick = keys.n;
  byId("previous").onclick = keys.p;
}

// Names of colours with the time they take; pressing one calls back with its name or null.
function makeLegend(events, onPick) {
  const time = new Map();
  for (let i = 0; i < events.count; i += 1) {
    const key = `${events.stream[i]}/${events.group[i]}`;
    time.set(key, (time.get(key) || 0) + events.length[i]);
  }
  let only = null;
  const entry = (stream, name) => (time.has(`${stream}/${name}`) ? el("button", {
    type: "button", "aria-pressed": "false", title: `Show only ${name}`,
    onclick: (event) => {
      only = only === name ? null : name;
      for (const button of byId("legend").querySelectorAll("button")) {
        button.setAttribute("aria-pressed", String(only !== null && button === event.currentTarget));
      }
      onPick(only);
    },
  }, swatch(name), name, el("span", { class: "soft" },
    secondsText(time.get(`${stream}/${name}`) / 1e9))) : null);
  byId("legend").replaceChildren(...[
    el("span", { class: "legend-title" }, "compute"),
    ...KINDS.map((kind) => entry("compute", kind)),
    el("span", { class: "legend-title" }, "communication"),
    ...ROLES.map((role) => entry("communication", role)),
  ].filter(Boolean));
}
