/** `console` of tenants: lines go to the runtime's structured log, limited in size and number, and nothing of Node's inspector leaks. */

import util from "node:util";
import { ArrayJoin, ArrayPush, StringSlice, StringToWellFormed, newList, quote } from "./intrinsics.mjs";
import { withoutHostPlaces } from "./thrown.mjs";
import { needMuchStack } from "./stack.mjs";

const { inspect } = util;
const MAX_LINE = 4_096;
const MAX_LINES = 256; // for each context or second of serving

const options = {
  __proto__: null,
  // Custom inspection would hand out Node's own `inspect` and run tenant code while the host formats.
  customInspect: false,
  showProxy: true,
  depth: 4,
  maxArrayLength: 100,
  maxStringLength: MAX_LINE,
  breakLength: Infinity,
};

/** Text for a log, whatever the value is. */
export function describe(/** @type {unknown} */ value) {
  try {
    return StringSlice(typeof value === "string" ? value : withoutHostPlaces(inspect(value, options)), 0, MAX_LINE);
  } catch {
    return "[a value that cannot be shown]";
  }
}

export class TenantConsole {
  /** @param {(header: string) => void} send */
  constructor(send) {
    this.send = send;
    this.left = MAX_LINES;
    this.dropped = 0;
    this.scope = "";
  }

  /** A new context (or second) begins: the allowance is full again. */
  reset(/** @type {string} */ scope) {
    this.scope = scope;
    this.left = MAX_LINES;
    this.dropped = 0;
  }

  line(/** @type {string} */ level, /** @type {unknown[]} */ values) {
    if (this.left === 0) {
      this.dropped++;
      return;
    }
    this.left--;
    /** @type {string[]} */
    const parts = newList();
    for (let i = 0; i < values.length && i < 32; i++) ArrayPush(parts, describe(values[i]));
    // Cutting may halve a surrogate pair, which JSON cannot carry.
    let text = StringToWellFormed(StringSlice(ArrayJoin(parts, " "), 0, MAX_LINE));
    if (this.left === 0) text += " (further lines of this context are dropped)";
    this.send(`{"t":"log","scope":${quote(this.scope)},"level":"${level}","text":${quote(text)}}`);
  }

  /** The object that becomes `globalThis.console`. */
  surface() {
    const at =
      (/** @type {string} */ level) =>
      (/** @type {unknown[]} */ ...values) => {
        needMuchStack();
        this.line(level, values);
      };
    const silent = () => {};
    return {
      log: at("info"),
      info: at("info"),
      debug: at("debug"),
      trace: at("debug"),
      warn: at("warning"),
      error: at("error"),
      dir: at("info"),
      table: at("info"),
      group: at("info"),
      groupCollapsed: at("info"),
      groupEnd: silent,
      assert: (/** @type {unknown} */ condition, /** @type {unknown[]} */ ...values) => {
        needMuchStack();
        if (!condition) this.line("error", ["Assertion failed", ...values]);
      },
      count: silent,
      countReset: silent,
      time: silent,
      timeLog: silent,
      timeEnd: silent,
      clear: silent,
    };
  }
}
