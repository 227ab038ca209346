/** Two trajectories side by side, of one run or of two; where they part is marked. */

import { button, fill, h } from "./dom.js";
import { count, number, visible } from "./format.js";
import { crumbs, missing, reading, watchStory } from "./group.js";
import { commonMessages, commonTokens, tokensOf } from "./path.js";
import { addressOf, go } from "./route.js";
import { messages } from "./said.js";
import { legend, makeTokens, tokenFacts } from "./tokens.js";
import { lookBar, lookKeys, outcomeSection } from "./trajectory.js";

/** Makes the comparison. */
export function makeCompare({ runs, place, look }) {
  const ids = place.ids;
  const rows = ids.map(([which, id]) => runs[which]?.groupOf[runs[which].rowOfTrajectory.get(id)]);
  const lost = ids.find((_, side) => rows[side] === undefined);
  if (lost) return { node: h("main", { class: "page" }, missing(`trajectory ${lost[1]}`)), keys: {}, update() {} };
  const node = h("main", { class: "page compare" }, reading());
  const above = ids[0][0] === ids[1][0] ? "groups" : "tasks";
  const sides = [null, null];
  const updates = ids.map(([which, id], side) =>
    watchStory(runs[which], rows[side], (story) => {
      const told = story?.trajectories.find((one) => one.id === id);
      sides[side] = told ? { which, story, told, tokens: tokensOf(runs[which], rows[side], story, told) } : "missing";
      draw();
    }),
  );
  let [boxes, abouts, parts] = [[], [], -1];

  function onLook(change) {
    Object.assign(look, change);
    draw();
  }

  /** Brings the places where the two part into sight. */
  function seek() {
    if (look.isTokens) {
      boxes.forEach((_, side) => choose(side, Math.min(parts, sides[side].tokens.length - 1), "far"));
    } else node.querySelector(".parts")?.scrollIntoView({ block: "center" });
  }

  function choose(side, token, isSought = false) {
    const { which, told, tokens } = sides[side];
    boxes[side].show(token, isSought);
    fill(abouts[side], tokenFacts(tokens[token], token, addressOf("trajectory", [[which, told.id]], { token })));
  }

  function parting(sameMessages) {
    const [one, other] = sides;
    const [left, right] = [one.tokens[parts], other.tokens[parts]];
    const said = `${count(parts, "token")} and ${count(sameMessages, "message")} in common`;
    if (!left && !right) return [h("p", { class: "muted" }, `${said}: they are the same`)];
    const quoted = (token) => (token ? h("code", {}, visible(token.text.slice(0, 40))) : "the end");
    const first = left ?? right;
    return [
      h("p", { class: "parting-note" }, `${said}. They part at token ${parts}, in turn ${first.turn}: `, quoted(left), " and ", quoted(right), "."),
      button("Go there", seek),
    ];
  }

  function draw() {
    if (sides.includes(null)) return;
    if (sides.includes("missing")) return fill(node, missing("record of both"));
    const [one, other] = sides;
    parts = commonTokens(one.tokens, other.tokens);
    const same = commonMessages(one.told.messages, other.told.messages);
    const isTwo = one.which !== other.which;
    boxes = look.isTokens ? sides.map(({ tokens }, side) => makeTokens({ tokens, colour: look.colour, same: parts, parts, onCurrent: (token) => choose(side, token) })) : [];
    abouts = sides.map(() => h("div"));
    fill(
      node,
      crumbs([h("a", { href: `#/${above}` }, above === "groups" ? "Groups" : "Tasks"), "comparison"]),
      h("div", { class: "parting-bar" }, parting(same)),
      lookBar(look, onLook),
      look.isTokens && legend([...one.tokens, ...other.tokens], look.colour),
      h(
        "div",
        { class: "sides" },
        sides.map(({ which, story, told, tokens }, side) =>
          h(
            "section",
            { "aria-label": side ? "Second" : "First" },
            h(
              "h2",
              {},
              h("a", { href: addressOf("trajectory", [[which, told.id]]), class: isTwo && `run-${which}` }, isTwo && `${visible(runs[which].index.run.name)}, `, `group ${story.id}, trajectory ${told.sample}`),
              h("span", { class: "muted" }, ` reward ${number(told.reward)}`),
            ),
            look.isTokens
              ? [boxes[side].node, abouts[side]]
              : messages({ said: told.messages, story, same, linkOf: (turn) => addressOf("trajectory", [[which, told.id]], { turn }) }),
            outcomeSection({ which, story, told, tokens }),
          ),
        ),
      ),
    );
  }

  return {
    node,
    keys: { ...lookKeys(look, onLook), n: seek },
    up: () => go(`#/${above}`),
    update(newRuns) {
      runs = newRuns;
      ids.forEach(([which], side) => updates[side](runs[which]));
    },
  };
}
