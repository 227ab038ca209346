// Runs in the isolated world beside observe.js: what the mouse and the keyboard cannot do by
// themselves, and when what they set off has been drawn.
(() => {
  function restless() {
    return document.getAnimations().some((animation) => {
      const timing = animation.effect?.getComputedTiming();
      return animation.playState === "running" && timing && Number.isFinite(timing.endTime);
    });
  }

  // Animations that stand still, by the time they have run.
  const held = new Map();

  function hold() {
    for (const animation of document.getAnimations()) {
      if (animation.playState !== "running" || held.has(animation)) continue;
      animation.pause();
      held.set(animation, 0);
    }
  }

  // Lets so much time pass for what is held.
  function glide(ms) {
    for (const [animation, ran] of held) {
      const end = animation.effect?.getComputedTiming().endTime;
      const over = animation.playState !== "paused" || !(ran + ms < end);
      if (animation.playState === "paused") {
        if (over) animation.finish();
        else animation.currentTime = ran + ms;
      }
      if (over) held.delete(animation);
      else held.set(animation, ran + ms);
    }
  }

  // Resolves after so many frames without a change of the document, or after mostMs; with how many
  // animations it has stopped, where it is to hold them, and what was copied since it last did.
  function still({ mostMs, calmFrames, holds }) {
    return new Promise((resolve) => {
      let changed = false;
      let calm = 0;
      const observer = new MutationObserver(() => { changed = true; });
      const end = () => {
        observer.disconnect();
        clearTimeout(timer);
        resolve({ held: held.size, copied });
        copied = null;
      };
      const timer = setTimeout(end, mostMs);
      const frame = () => {
        if (holds) hold();
        calm = changed || restless() ? 0 : calm + 1;
        changed = false;
        if (calm >= calmFrames) end();
        else requestAnimationFrame(frame);
      };
      observer.observe(document, {
        subtree: true, childList: true, attributes: true, characterData: true,
      });
      requestAnimationFrame(frame);
    });
  }

  // What is copied belongs to the episode and stays out of the browser's clipboard, which all its
  // episodes share. It is the selected text, or what the page puts in its place, by type.
  const MOST_COPIED = 2 ** 20;
  let copied = null;
  let offered = null;

  function keepCopied(texts) {
    copied = texts;
  }

  function copy(event) {
    if (!event.isTrusted) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    if (offered) {
      Object.entries(offered).forEach(([type, text]) => event.clipboardData.setData(type, text));
      return;
    }
    const data = new DataTransfer();
    const untouched = event.composedPath()[0].dispatchEvent(new ClipboardEvent(event.type, {
      bubbles: true, cancelable: true, composed: true, clipboardData: data,
    }));
    if (untouched) {
      const text = getSelection().toString();
      const cuts = event.type === "cut";
      if (text === "" || (cuts && !document.queryCommandEnabled("delete"))) return;
      data.setData("text/plain", text);
      // Not at once: a page may cut by a command, and none runs within another one.
      if (cuts) queueMicrotask(() => document.execCommand("delete"));
    }
    const texts = Object.fromEntries(data.types.map((type) => [type, data.getData(type)]));
    const size = Object.values(texts).join("").length;
    if (size === 0 || size > MOST_COPIED) return;
    try {
      top.keepCopied(texts);
    } catch {
      // A frame of another origin, which is not observed either.
    }
  }

  for (const type of ["copy", "cut"]) addEventListener(type, copy, true);
  addEventListener("beforecopy", (event) => {
    if (!offered) return;
    event.preventDefault(); // lets a copy happen without a selection
    event.stopImmediatePropagation();
  }, true);

  // Puts texts into the browser's clipboard; whether that could be done.
  function offer(texts) {
    offered = texts;
    try {
      return document instanceof HTMLDocument && document.execCommand("copy");
    } finally {
      offered = null;
    }
  }

  // Fields that a keyboard fills in pieces take their value whole; false for one that refuses it.
  function put({ id, value }) {
    const element = elementOf(id);
    if (!element) return null;
    const setter = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
    setter.call(element, value);
    element.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
    element.dispatchEvent(new Event("change", { bubbles: true }));
    return element.value !== "" || value === "";
  }

  // Everything in a field, chosen, so that what is typed replaces it.
  function mark(id) {
    const element = elementOf(id);
    if (!element) return false;
    element.focus({ preventScroll: true });
    if (element.select) element.select();
    else getSelection().selectAllChildren(element);
    return true;
  }

  // Chooses one option by its label or value; the labels there are, where there is no such option.
  function choose({ id, wanted }) {
    const element = elementOf(id);
    const options = [...element.options];
    const plain = (text) => text.replace(/\s+/g, " ").trim();
    const found = options.find((one) => plain(one.label) === plain(wanted)) ??
      options.find((one) => one.value === wanted);
    if (!found || found.disabled) return options.map((one) => plain(one.label)).slice(0, 50);
    if (element.multiple) found.selected = !found.selected;
    else element.value = found.value, found.selected = true;
    element.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
    element.dispatchEvent(new Event("change", { bubbles: true }));
    return null;
  }

  // Scrolls what an element is in, or the page, by parts of what is seen of it; false at the end.
  function roll({ id, across, along }) {
    let at = id === null ? null : elementOf(id);
    if (id !== null && !at) return null;
    for (; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      const scrolls = /auto|scroll/.test(along ? style.overflowY : style.overflowX);
      if (scrolls && (along ? at.scrollHeight > at.clientHeight : at.scrollWidth > at.clientWidth)) break;
    }
    const rolled = at ?? document.scrollingElement ?? document.documentElement;
    const before = [rolled.scrollLeft, rolled.scrollTop];
    rolled.scrollBy({
      left: across * rolled.clientWidth, top: along * rolled.clientHeight, behavior: "instant",
    });
    return rolled.scrollLeft !== before[0] || rolled.scrollTop !== before[1];
  }

  // How often the page's policy has refused something since `forget`. jQuery tries for itself, while
  // it loads, what a browser does; later on, it is something that is not the page's own.
  let refused = 0;
  const seen = globalThis.forget;
  addEventListener("securitypolicyviolation", () => { refused += 1; });
  const refusals = () => refused;
  function forget() {
    refused = 0;
    return seen();
  }

  Object.assign(globalThis, {
    refusals, forget, still, glide, keepCopied, offer, put, mark, choose, roll,
  });
})();
