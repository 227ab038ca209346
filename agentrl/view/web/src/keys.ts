/** Keys, for the view that is open; a field that is being typed in keeps its own.
 *
 * A dialog that was closed keeps the focus for a moment: only an open one keeps its keys. */

import { useEffect, useRef } from "preact/hooks";

export type Keys = Record<string, (event: KeyboardEvent) => void>;

export function useKeys(keys: Keys): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      const target = event.target as HTMLElement;
      if (target.closest("input, select, textarea, dialog[open]")) return;
      if (event.key === "Enter" && target.closest("button, a, summary")) return;
      const act = latest.current[event.key];
      if (!act) return;
      event.preventDefault();
      act(event);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

export const HELP: [string, [string, string][]][] = [
  [
    "Anywhere",
    [
      ["1 2 3", "overview, groups, trajectories"],
      ["/", "search"],
      ["d", "dark or light"],
      ["?", "these keys"],
      ["Esc or u", "one level up"],
    ],
  ],
  [
    "In a table",
    [
      ["j k or ↓ ↑", "next and previous row"],
      ["Enter", "open it"],
    ],
  ],
  [
    "In a group",
    [
      ["j k", "next and previous trajectory"],
      ["Enter", "open it"],
      ["m", "mark it for comparison"],
      ["c", "compare the two that are marked"],
      ["n p", "next and previous group"],
    ],
  ],
  [
    "In a trajectory",
    [
      ["j k", "next and previous of its group"],
      ["t", "tokens or conversation"],
      ["s e a r v", "colour tokens by source, entropy, advantage, ratio, version age"],
      ["← →", "previous and next token"],
      ["m", "mark it for comparison"],
      ["c", "compare the two that are marked"],
    ],
  ],
];
