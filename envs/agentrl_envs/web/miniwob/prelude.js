// Runs before a page's own scripts: the date is the same in every episode, and nothing glides.
(() => {
  "use strict";
  const start = Date.UTC(2016, 10, 1, 12);
  const loaded = Date.now();
  const Clock = Date;
  window.Date = new Proxy(Clock, {
    construct: (target, given, made) =>
      Reflect.construct(target, given.length ? given : [start + Clock.now() - loaded], made),
    apply: () => new Clock(start + Clock.now() - loaded).toString(),
  });
  const style = document.createElement("style");
  style.nonce = document.currentScript.nonce;
  style.textContent =
    "#reward-display, #click-canvas, #sync-task-cover { display: none !important; }" +
    "* { transition: none !important; animation: none !important; }";
  document.documentElement.append(style);
})();
