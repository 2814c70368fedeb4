// Lists of facts about one thing.

const isKnown = (value) => value !== null && value !== undefined;

// What is long has a line of its own.
function factList(facts) {
  return el("dl", {}, ...facts.map(([term, text]) => el("div",
    { class: text.length > 44 ? "long" : null }, el("dt", {}, term), el("dd", {}, text))));
}
