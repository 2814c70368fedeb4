// The parts of a profile's page in their order.

makeTheme();
let shown = null;
const timeline = makeTimeline(DATA.timeline, { onShowRow: (c) => shown.show(c) });
makeClasses();
shown = makeCollectives(timeline);
makeOperations();
document.documentElement.dataset.ready = "yes";
