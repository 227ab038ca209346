// Runs in the page's own world before its scripts: remembers which elements listen to the mouse.
// observe.js asks for them by an event, the one thing that both worlds hear. A page that lies here
// changes what looks clickable, and nothing else.
(() => {
  "use strict";
  const MOUSE = new Set([
    "click", "dblclick", "mousedown", "mouseup", "pointerdown", "pointerup", "touchstart",
    "mouseover", "mouseenter", "mousemove", "dragstart",
  ]);
  const MOST = 4000;
  const counts = new WeakMap();
  const known = new Set();
  const target = EventTarget.prototype;
  const { addEventListener, removeEventListener, dispatchEvent } = target;
  const keys = new WeakMap();

  function change(element, type, listener, options, by) {
    if (!MOUSE.has(type) || !(element instanceof Element) || !listener) return;
    const capture = typeof options === "boolean" ? options : Boolean(options?.capture);
    let held = keys.get(element);
    if (!held) keys.set(element, (held = new Map()));
    let types = held.get(listener);
    if (!types) held.set(listener, (types = new Set()));
    const key = `${type} ${capture}`;
    if (by > 0 === types.has(key)) return;
    by > 0 ? types.add(key) : types.delete(key);
    const count = (counts.get(element) ?? 0) + by;
    counts.set(element, count);
    if (count === 0) known.delete(element);
    else if (known.size < MOST || sweep()) known.add(element);
  }

  // Elements are held, not watched: an element's wrapper can go while the element stays.
  function sweep() {
    for (const element of known) if (!element.isConnected) known.delete(element);
    return known.size < MOST;
  }

  target.addEventListener = function (type, listener, options) {
    const result = addEventListener.call(this, type, listener, options);
    change(this, type, listener, options, 1);
    return result;
  };
  target.removeEventListener = function (type, listener, options) {
    const result = removeEventListener.call(this, type, listener, options);
    change(this, type, listener, options, -1);
    return result;
  };
  for (const owner of [HTMLElement.prototype, SVGElement.prototype]) {
    for (const type of MOUSE) {
      const found = Object.getOwnPropertyDescriptor(owner, `on${type}`);
      if (!found?.set) continue;
      Object.defineProperty(owner, `on${type}`, {
        ...found,
        set(handler) {
          const before = found.get.call(this);
          if (before) change(this, type, before, "property", -1);
          found.set.call(this, handler);
          if (typeof handler === "function") change(this, type, handler, "property", 1);
        },
      });
    }
  }
  addEventListener.call(document, "eye:who-listens", () => {
    for (const element of known) {
      if (element.isConnected) {
        dispatchEvent.call(element, new CustomEvent("eye:listens", { composed: true }));
      }
    }
  });
})();
