/** Every token of a trajectory, coloured by one of its numbers. */

import { button, fill, h } from "./dom.js";
import { count, exact, number, signed, visible } from "./format.js";
import { sourceLegend } from "./tree.js";

export const COLOURS = ["source", "entropy", "advantage", "ratio", "age"];
const FIELD = { entropy: "entropy", advantage: "advantage", ratio: "logRatio", age: "age" };
/** Tokens in the page at once; more come when they are asked for. */
const WINDOW = 4000;

function mix(name, share) {
  return `color-mix(in oklab, var(--${name}) ${Math.round(Math.max(0, Math.min(1, share)) * 100)}%, transparent)`;
}

/** Returns how tokens are painted by a number of theirs, with the ends of the scale in words. */
function scaleOf(tokens, colour) {
  const field = FIELD[colour];
  const known = tokens.map((token) => token[field]).filter((one) => one !== null);
  // The largest without the last half per cent, which would make all others pale.
  const sizes = known.map(Math.abs).sort((one, other) => one - other);
  const most = sizes[Math.floor((sizes.length - 1) * 0.995)] ?? 0;
  const isTwoSided = colour === "advantage" || colour === "ratio";
  const paint = (token) => {
    const own = token[field];
    if (own === null) return null;
    if (!isTwoSided) return mix("heat", most ? 0.06 + 0.6 * (own / most) : 0.06);
    return mix(own < 0 ? "minus" : "plus", most ? 0.04 + 0.6 * (Math.abs(own) / most) : 0.04);
  };
  const end = (value) => ({ ratio: number(Math.exp(value)), advantage: signed(value), age: `${number(value)} versions`, entropy: `${number(value)} nats` })[colour];
  return { paint, isTwoSided, isKnown: known.length > 0, low: isTwoSided ? end(-most) : "0", high: end(most) };
}

/** Makes the key to the colours of tokens. */
export function legend(tokens, colour) {
  if (colour === "source") return sourceLegend([...new Set(tokens.map((token) => token.source))]);
  const scale = scaleOf(tokens, colour);
  if (!scale.isKnown) {
    const why = colour === "age" ? "the group has not been trained" : "these tokens did not train, or view.record was off";
    return h("p", { class: "muted" }, `No ${colour} is known: ${why}.`);
  }
  const plain = scale.isTwoSided ? `plain is ${colour === "ratio" ? 1 : 0}; ` : "";
  return h(
    "div",
    { class: "scale" },
    h("span", {}, scale.low),
    h("i", { class: scale.isTwoSided ? "two" : "one" }),
    h("span", {}, scale.high),
    h("span", { class: "muted" }, `${plain}tokens without a value stay plain`),
  );
}

function tokenWords(text) {
  return visible(text).replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}

/**
 * Makes the tokens. `same` of them are also the other trajectory's, and the next is where they part;
 * `onCurrent(place, isChosen)` hears of the one that is pointed at or chosen.
 */
export function makeTokens({ tokens, colour, onCurrent, same = 0, parts = -1 }) {
  const scale = colour === "source" ? null : scaleOf(tokens, colour);
  const node = h("div", { class: `tokens by-${colour}`, tabindex: 0, role: "group", "aria-label": "Tokens; arrow keys go from one to the next" });
  const pointedAt = (event) => Number(event.target.closest("[data-place]")?.dataset["place"] ?? -1);
  // Not `pointerover`: what scrolls below a pointer at rest has not been pointed at.
  node.addEventListener("pointermove", (event) => {
    const place = pointedAt(event);
    if (place >= 0 && place !== current) onCurrent(place, false);
  });
  node.addEventListener("click", (event) => pointedAt(event) >= 0 && onCurrent(pointedAt(event), true));
  let [first, last, current] = [0, Math.min(WINDOW, tokens.length), -1];

  function span(token, place) {
    const classes = ["token"];
    if (!scale) classes.push(token.source);
    if (token.isWithdrawn) classes.push("withdrawn");
    if (place < same) classes.push("same");
    if (place === parts) classes.push("parting");
    if (place === current) classes.push("here");
    const painted = scale?.paint(token);
    const isOpening = place === 0 || tokens[place - 1].turn !== token.turn;
    return [
      isOpening && h("span", { class: "turn" }, `turn ${token.turn}`),
      h("span", { "data-place": place, class: classes.join(" "), style: painted && { background: painted } }, tokenWords(token.text)),
      token.text.endsWith("\n") && h("br"),
    ];
  }

  function draw() {
    fill(
      node,
      first > 0 &&
        button(`Show ${count(Math.min(WINDOW, first), "earlier token")} of ${first}`, () => {
          first = Math.max(0, first - WINDOW);
          draw();
        }),
      tokens.slice(first, last).map((token, offset) => span(token, first + offset)),
      last < tokens.length &&
        button(`Show ${count(Math.min(WINDOW, tokens.length - last), "later token")} of ${tokens.length - last}`, () => {
          last = Math.min(tokens.length, last + WINDOW);
          draw();
        }),
    );
  }

  draw();
  return {
    node,
    /** Marks a token, and brings it into sight if that is wanted. */
    show(place, isSought) {
      current = place;
      if (place < 0 || place >= tokens.length) return;
      if (place < first || place >= last) {
        first = Math.max(0, place - WINDOW / 2);
        last = Math.min(tokens.length, first + WINDOW);
        draw();
      }
      node.querySelector(".token.here")?.classList.remove("here");
      const element = node.querySelector(`[data-place="${place}"]`);
      element.classList.add("here");
      if (isSought) element.scrollIntoView({ block: isSought === "far" ? "center" : "nearest" });
    },
  };
}

/** All that is known of one token, and its address. */
export function tokenFacts(token, place, link) {
  if (!token) return h("p", { class: "muted" }, "Point at a token, or use the arrow keys; click one for its address.");
  const isSampled = token.source === "sampled";
  const facts = [
    ["place", String(place)],
    ["id", token.id < 0 ? "redacted" : String(token.id)],
    ["source", token.isWithdrawn ? `${token.source}, withdrawn` : token.source],
    ["turn", String(token.turn)],
    ...(isSampled
      ? [
          ["log-prob", exact(token.logprob)],
          ["probability", token.logprob === null ? "not known" : number(Math.exp(token.logprob), 4)],
          ["entropy", exact(token.entropy)],
          ["advantage", exact(token.advantage)],
          ["ratio", token.logRatio === null ? "not known" : exact(Number(Math.exp(token.logRatio).toPrecision(4)))],
          ["version", exact(token.version)],
          ["age", exact(token.age)],
          ["trained", token.isTrained ? "yes" : "no"],
        ]
      : [["trained", "never: the policy did not sample it"]]),
  ];
  return h(
    "div",
    { class: "token-facts", role: "status" },
    h("p", { class: "token-text" }, tokenWords(token.text)),
    h("dl", {}, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    link && h("p", {}, h("a", { href: link }, "Link to this token")),
  );
}
