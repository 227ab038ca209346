// Runs in a page's own world before its scripts, where the page's time goes on with the actions: its
// timers, its frames and its date stand still until `advance` lets so many milliseconds pass. Frames
// of one origin share the clock of the outermost; workers and the network keep their own time.
(() => {
  "use strict";
  const NAME = Symbol.for("agentrl.clock");
  const FRAME_MS = 16;
  const START = Date.UTC(2024, 0, 1, 12);

  class Clock {
    #now = 0;
    #last = 0;
    #due = new Map();
    #channel = new MessageChannel();

    get now() {
      return this.#now;
    }

    get date() {
      return START + Math.floor(this.#now);
    }

    // Begins anew without what was to happen later. Frames stay: a library draws on in them, and one
    // that never comes would stop it for good.
    reset() {
      const frames = [...this.#due.values()].filter((one) => one.kind === "frame");
      this.#now = this.#last = 0;
      this.#due.clear();
      for (const { run } of frames) this.add("frame", FRAME_MS, null, run);
    }

    add(kind, at, every, run) {
      this.#last += 1;
      this.#due.set(this.#last, { id: this.#last, order: this.#last, kind, at, every, run });
      return this.#last;
    }

    after(kind, ms, repeats, run) {
      // As in browsers nothing happens in no time, or a page could go on forever within it.
      const delay = Math.max(1, Number(ms) || 0);
      return this.add(kind, this.#now + delay, repeats ? delay : null, run);
    }

    nextFrame(run) {
      const at = (Math.floor(this.#now / FRAME_MS) + 1) * FRAME_MS;
      return this.add("frame", at, null, () => run(this.#now));
    }

    drop(kind, id) {
      if (this.#due.get(Number(id))?.kind === kind) this.#due.delete(Number(id));
    }

    // Lets time pass and everything happen that is due in it, each in a task of its own, as it would
    // have; how many things did.
    async advance(ms) {
      const until = this.#now + ms;
      let happened = 0;
      for (let next = this.#next(until); next; next = this.#next(until)) {
        this.#now = Math.max(this.#now, next.at);
        if (next.every === null) this.#due.delete(next.id);
        else Object.assign(next, { at: this.#now + next.every, order: (this.#last += 1) });
        try {
          next.run();
        } catch (error) {
          reportError(error);
        }
        happened += 1;
        await this.#turn();
      }
      this.#now = Math.max(this.#now, until);
      return happened;
    }

    #next(until) {
      let found = null;
      for (const one of this.#due.values()) {
        if (one.at > until) continue;
        if (!found || one.at < found.at || (one.at === found.at && one.order < found.order)) found = one;
      }
      return found;
    }

    #turn() {
      return new Promise((resolve) => {
        this.#channel.port1.onmessage = resolve;
        this.#channel.port2.postMessage(null);
      });
    }
  }

  function outermost() {
    try {
      return window.parent[NAME];
    } catch {
      return undefined; // of another origin
    }
  }

  const clock = (window === window.parent ? undefined : outermost()) ?? new Clock();
  Object.defineProperty(window, NAME, { value: clock });

  const view = window;
  const timer = (repeats) => (callback, ms, ...given) => {
    const run = typeof callback === "function" ? callback : () => view.eval(String(callback));
    return clock.after("timer", ms, repeats, () => run.apply(view, given));
  };
  const idle = (callback) =>
    clock.after("idle", 0, false, () =>
      callback.call(view, { didTimeout: false, timeRemaining: () => FRAME_MS }));
  const dropping = (kind) => (id) => clock.drop(kind, id);
  const given = {
    setTimeout: timer(false),
    setInterval: timer(true),
    clearTimeout: dropping("timer"),
    clearInterval: dropping("timer"),
    requestAnimationFrame: (callback) => clock.nextFrame((now) => callback.call(view, now)),
    cancelAnimationFrame: dropping("frame"),
    requestIdleCallback: idle,
    cancelIdleCallback: dropping("idle"),
  };
  for (const [name, value] of Object.entries(given)) {
    Object.defineProperty(view, name, { value, writable: true, configurable: true, enumerable: true });
  }
  Object.defineProperty(view.Performance.prototype, "now", {
    value: () => clock.now, writable: true, configurable: true, enumerable: true,
  });
  const Native = view.Date;
  const now = () => clock.date;
  view.Date = new Proxy(Native, {
    construct: (target, parts, made) => Reflect.construct(target, parts.length ? parts : [now()], made),
    apply: () => new Native(now()).toString(),
    get: (target, key) => (key === "now" ? now : Reflect.get(target, key)),
  });
})();
