// The parts of the page in their order.

makeTheme();
let shown = null;
const timeline = DATA.timeline && DATA.timeline.events.length
  ? makeTimeline(DATA.timeline, { onShowRow: (c) => shown.show(c) }) : null;
shown = makeCollectives(timeline);
makeMemory();
makeSharding();
document.documentElement.dataset.ready = "yes";
