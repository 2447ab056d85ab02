/** Role `inspect`: what does a Version's main module export? (MW-10, W-080) Runs in a process of its own, which is killed afterwards. */

import util from "node:util";
import {
  ArrayPush,
  ObjectHasOwn,
  ObjectPrototype,
  PromiseThen,
  ReflectConstruct,
  ReflectGetOwnPropertyDescriptor,
  ReflectGetPrototypeOf,
  ReflectOwnKeys,
  newList,
  quote,
} from "./intrinsics.mjs";
import { Graph, ModuleProblem } from "./modules.mjs";
import { describeThrown } from "./thrown.mjs";

const HANDLERS = ["fetch", "scheduled", "queue"];
const { isProxy } = util.types;

const data = (/** @type {object} */ owner, /** @type {PropertyKey} */ key) => {
  const found = ReflectGetOwnPropertyDescriptor(owner, key);
  return found !== undefined && ObjectHasOwn(found, "value") ? found.value : undefined;
};

/** Can `new value()` be tried? Found without running it: `newTarget` is checked before the (empty) target runs. */
function isConstructor(/** @type {unknown} */ value) {
  if (typeof value !== "function") return false;
  try {
    ReflectConstruct(Object, [], value);
    return true;
  } catch {
    return false;
  }
}

/** Constructible, with a callable data property `run` on its prototype chain. */
function isWorkflowClass(/** @type {unknown} */ value) {
  if (!isConstructor(value)) return false;
  let at = data(/** @type {object} */ (value), "prototype");
  while (at !== null && (typeof at === "object" || typeof at === "function")) {
    const found = ReflectGetOwnPropertyDescriptor(at, "run");
    if (found !== undefined) return ObjectHasOwn(found, "value") && typeof found.value === "function";
    at = ReflectGetPrototypeOf(at);
  }
  return false;
}

function isPlainObject(/** @type {unknown} */ value) {
  if (typeof value !== "object" || value === null || isProxy(value)) return false;
  const prototype = ReflectGetPrototypeOf(value);
  return prototype === ObjectPrototype || prototype === null;
}

export class InspectRole {
  /** @param {import("./frames.mjs").Link} link @param {(version: string) => import("./modules.mjs").Code} codeOf */
  constructor(link, codeOf) {
    this.link = link;
    this.codeOf = codeOf;
  }

  onFrame(/** @type {any} */ header) {
    if (header.t !== "inspect") return;
    try {
      const graph = new Graph(this.codeOf(header.version), "inspection:/");
      const main = graph.link();
      PromiseThen(
        graph.evaluate(main),
        () => this.#report(main.namespace),
        (/** @type {unknown} */ error) => this.#problem(error, header.entrypoint),
      );
    } catch (error) {
      this.#problem(error, header.entrypoint);
    }
  }

  onUncaught() {}

  giveUp() {}

  #problem(/** @type {unknown} */ error, /** @type {string} */ entrypoint) {
    if (error instanceof ModuleProblem) this.#send(false, [], [], error.code, error.message, error.path);
    else {
      const { name, message } = describeThrown(error);
      this.#send(false, [], [], "evaluation_threw", `evaluating the modules threw ${name}: ${message}`, entrypoint);
    }
  }

  #report(/** @type {any} */ namespace) {
    try {
      /** @type {string[]} */
      const classes = newList();
      const names = ReflectOwnKeys(namespace);
      for (let i = 0; i < names.length; i++) {
        const name = names[i];
        if (typeof name === "string" && name !== "default" && isWorkflowClass(data(namespace, name))) ArrayPush(classes, name);
      }
      const main = data(namespace, "default");
      if (!isPlainObject(main)) {
        const what = "the default export of the main module must be a plain object with the handlers as its own methods";
        this.#send(true, [], classes, "default_export_invalid", what, "");
        return;
      }
      /** @type {string[]} */
      const handlers = newList();
      for (let i = 0; i < HANDLERS.length; i++) {
        const name = /** @type {string} */ (HANDLERS[i]);
        if (typeof data(main, name) === "function") ArrayPush(handlers, name);
      }
      this.#send(true, handlers, classes, "", "", "");
    } catch (error) {
      const { name, message } = describeThrown(error);
      this.#send(true, [], [], "default_export_invalid", `an export could not be inspected: ${name}: ${message}`, "");
    }
  }

  #send(
    /** @type {boolean} */ loads,
    /** @type {string[]} */ handlers,
    /** @type {string[]} */ classes,
    /** @type {string} */ code,
    /** @type {string} */ message,
    /** @type {string} */ module,
  ) {
    const list = (/** @type {string[]} */ values) => {
      let text = "";
      for (let i = 0; i < values.length; i++) text += (i > 0 ? "," : "") + quote(/** @type {string} */ (values[i]));
      return `[${text}]`;
    };
    this.link.send(
      `{"t":"inspected","loads":${loads},"handlers":${list(handlers)},"classes":${list(classes)},` +
        `"code":${quote(code)},"message":${quote(message)},"module":${quote(module)}}`,
    );
  }
}
