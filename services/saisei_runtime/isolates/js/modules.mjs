/** Modules of a bundle (MW-11 … MW-15): a fresh graph for each context, linked by table lookup, nothing else importable. */

import util from "node:util";
import vm from "node:vm";
import {
  ArrayJoin,
  ArrayPop,
  ArrayPush,
  MapDelete,
  MapGet,
  MapSet,
  PromiseThen,
  ReflectGetOwnPropertyDescriptor,
  ReflectOwnKeys,
  SafeMap,
  SafePromise,
  SafeUint8Array,
  StringIncludes,
  StringLastIndexOf,
  StringSlice,
  StringSplit,
  StringStartsWith,
  TypedArrayBuffer,
  namedError,
  newList,
  uncurryThis,
} from "./intrinsics.mjs";
import { needMuchStack } from "./stack.mjs";

export const JAVASCRIPT = "application/javascript+module";
const TEXT = "text/plain";
const BYTES = "application/octet-stream";
const WASM = "application/wasm";

const { SourceTextModule, SyntheticModule } = vm;
const WasmModule = WebAssembly.Module;
const decoder = new util.TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const decode = uncurryThis(decoder.decode);
const linkRequests = uncurryThis(SourceTextModule.prototype.linkRequests);
const instantiate = uncurryThis(SourceTextModule.prototype.instantiate);
const createCachedData = uncurryThis(/** @type {any} */ (SourceTextModule.prototype).createCachedData);
const evaluate = uncurryThis(SourceTextModule.prototype.evaluate);
const setExport = uncurryThis(SyntheticModule.prototype.setExport);

/** Sources from this size on are compiled from cached data. */
const CACHE_FROM = 8_192;

/**
 * The path that a specifier means, by POSIX segments (MW-12).
 * @returns {string | null} null when the specifier can mean no file of a bundle
 */
export function resolve(/** @type {string} */ specifier, /** @type {string} */ importer) {
  if (StringIncludes(specifier, "\\") || StringIncludes(specifier, "?") || StringIncludes(specifier, "#")) return null;
  const fromRoot = StringStartsWith(specifier, "/");
  if (!fromRoot && !StringStartsWith(specifier, "./") && !StringStartsWith(specifier, "../")) return null;
  const slash = StringLastIndexOf(importer, "/");
  /** @type {string[]} */
  const path = newList();
  const folders = fromRoot || slash < 0 ? "" : StringSlice(importer, 0, slash);
  if (folders !== "") {
    const parts = StringSplit(folders, "/");
    for (let i = 0; i < parts.length; i++) ArrayPush(path, parts[i]);
  }
  const segments = StringSplit(fromRoot ? StringSlice(specifier, 1) : specifier, "/");
  for (let i = 0; i < segments.length; i++) {
    const segment = segments[i];
    if (segment === "") return null;
    if (segment === ".") continue;
    if (segment === "..") {
      if (path.length === 0) return null;
      ArrayPop(path);
    } else ArrayPush(path, segment);
  }
  return ArrayJoin(path, "/");
}

/** A module that cannot be used; `code` is the name of the problem, `path` the module that has it. */
export class ModuleProblem {
  /** @param {string} code @param {string} message @param {string} path @param {unknown} cause */
  constructor(code, message, path, cause = undefined) {
    this.code = code;
    this.message = message;
    this.path = path;
    this.cause = cause;
  }
  /** What application code may see of it. */
  error() {
    return this.code === "syntax_error" && this.cause !== undefined ? this.cause : namedError(this.code, this.message);
  }
}
Object.setPrototypeOf(ModuleProblem.prototype, null);

/** One file, kept for the life of the thread. */
class Source {
  /** @param {string} path @param {string} type @param {Uint8Array<ArrayBuffer>} data */
  constructor(path, type, data) {
    this.path = path;
    this.type = type;
    this.data = data;
    /** @type {string | null} */
    this.text = null;
    /** @type {Buffer | undefined} */
    this.cachedData = undefined;
    /** Keeps V8's cache of the compiled code alive. @type {WebAssembly.Module | undefined} */
    this.wasm = undefined;
  }
  /** @throws {ModuleProblem} */
  decoded() {
    if (this.text === null) {
      try {
        this.text = /** @type {string} */ (decode(decoder, this.data));
      } catch {
        throw new ModuleProblem("invalid_utf8", `${this.path} is not valid UTF-8`, this.path);
      }
    }
    return this.text;
  }
}
Object.setPrototypeOf(Source.prototype, null);

/** The code of one WorkerVersion as this thread holds it. */
export class Code {
  /**
   * @param {{ version: string, entrypoint: string, modules: { path: string, type: string, length: number }[], vars: string,
   *   secrets: [string, string][], bindings: [string, string][] }} header
   * @param {import("./frames.mjs").Body} body the files, one after the other
   */
  constructor(header, body) {
    this.version = header.version;
    this.entrypoint = header.entrypoint;
    this.vars = header.vars;
    this.secrets = header.secrets;
    this.bindings = header.bindings;
    /** @type {Map<string, Source>} */
    this.sources = new SafeMap();
    let at = 0;
    for (let i = 0; i < header.modules.length; i++) {
      const { path, type, length } = /** @type {any} */ (header.modules[i]);
      MapSet(this.sources, path, new Source(path, type, body.copy(at, length)));
      at += length;
    }
  }
}
Object.setPrototypeOf(Code.prototype, null);

export class Graph {
  /**
   * @param {Code} code
   * @param {string} tag makes the identifiers of this graph's modules unique: with equal ones, linking slows down with each context
   */
  constructor(code, tag) {
    this.code = code;
    this.tag = tag;
    /** @type {Map<string, any>} */
    this.modules = new SafeMap();
  }

  /**
   * Compiles and links everything that the entrypoint imports statically.
   * @returns {any} the main module, instantiated and not evaluated
   * @throws {ModuleProblem}
   */
  link() {
    return this.#load(this.code.entrypoint);
  }

  /** @returns {Promise<void>} */
  evaluate(/** @type {any} */ module) {
    return evaluate(module);
  }

  #load(/** @type {string} */ entry) {
    const known = MapGet(this.modules, entry);
    if (known !== undefined) return known;
    /** @type {{ module: any, path: string, isScript: boolean }[]} */
    const fresh = newList();
    try {
      return this.#linkFrom(entry, fresh);
    } catch (problem) {
      // A later import() of these starts anew instead of meeting modules that were never linked.
      for (let i = 0; i < fresh.length; i++) MapDelete(this.modules, /** @type {any} */ (fresh[i]).path);
      throw problem;
    }
  }

  #linkFrom(/** @type {string} */ entry, /** @type {{ module: any, path: string, isScript: boolean }[]} */ fresh) {
    const main = this.#make(entry, fresh, entry);
    // Breadth first and without recursion: a chain of imports may be as long as a bundle.
    for (let i = 0; i < fresh.length; i++) {
      const { module, path, isScript } = /** @type {any} */ (fresh[i]);
      if (!isScript) continue;
      const requests = module.moduleRequests;
      /** @type {any[]} */
      const found = newList();
      for (let j = 0; j < requests.length; j++) {
        ArrayPush(found, this.#request(requests[j].specifier, requests[j].attributes, requests[j].phase, path, fresh));
      }
      linkRequests(module, found);
    }
    try {
      if (/** @type {any} */ (fresh[0]).isScript) instantiate(main);
    } catch (error) {
      throw new ModuleProblem("missing_export", describeLinkError(error), entry, error);
    }
    return main;
  }

  #request(
    /** @type {string} */ specifier,
    /** @type {object} */ attributes,
    /** @type {string} */ phase,
    /** @type {string} */ importer,
    /** @type {any[]} */ fresh,
  ) {
    if (phase !== "evaluation" || ReflectOwnKeys(attributes).length > 0) {
      throw new ModuleProblem(
        "unsupported_media_type",
        `${importer} imports "${specifier}" with attributes or in a phase that is not offered`,
        importer,
      );
    }
    const path = resolve(specifier, importer);
    if (path === null) {
      throw new ModuleProblem(
        "module_not_found",
        `${importer} imports "${specifier}", which is no "./", "../" or "/" path inside the bundle`,
        importer,
      );
    }
    return MapGet(this.modules, path) ?? this.#make(path, fresh, importer);
  }

  #make(/** @type {string} */ path, /** @type {any[]} */ fresh, /** @type {string} */ importer) {
    const source = /** @type {Source | undefined} */ (MapGet(this.code.sources, path));
    if (source === undefined) {
      throw new ModuleProblem("module_not_found", `${importer} imports ${path}, which is not in the bundle`, importer);
    }
    /** @type {any} */
    let module;
    if (source.type === JAVASCRIPT) {
      module = this.#script(source);
    } else {
      const value = this.#value(source, importer);
      const options = /** @type {any} */ ({ __proto__: null, identifier: `${this.tag}${path}` });
      module = new SyntheticModule(["default"], () => setExport(module, "default", value), options);
    }
    ArrayPush(fresh, { module, path, isScript: source.type === JAVASCRIPT });
    MapSet(this.modules, path, module);
    return module;
  }

  #script(/** @type {Source} */ source) {
    const text = source.decoded();
    try {
      // Without a prototype: Node reads more options than these.
      const options = /** @type {any} */ ({
        __proto__: null,
        identifier: `${this.tag}${source.path}`,
        cachedData: source.cachedData,
        importModuleDynamically: /** @type {any} */ (
          (/** @type {string} */ specifier, /** @type {any} */ _referrer, /** @type {any} */ attributes, /** @type {any} */ phase) =>
            this.#dynamic(specifier, attributes, phase, source.path)
        ),
      });
      const module = new SourceTextModule(text, options);
      if (source.cachedData === undefined && text.length >= CACHE_FROM) source.cachedData = createCachedData(module);
      return module;
    } catch (error) {
      throw new ModuleProblem("syntax_error", describeLinkError(error), source.path, error);
    }
  }

  #value(/** @type {Source} */ source, /** @type {string} */ importer) {
    switch (source.type) {
      case TEXT:
        return source.decoded();
      case BYTES:
        return TypedArrayBuffer(new SafeUint8Array(source.data));
      case WASM:
        try {
          source.wasm ??= new WasmModule(source.data);
          return new WasmModule(source.data); // an object of its own for each context, compiled once
        } catch {
          throw new ModuleProblem("invalid_wasm", `${source.path} is not a valid WebAssembly module`, source.path);
        }
      default:
        throw new ModuleProblem(
          "unsupported_media_type",
          `${importer} imports ${source.path}, whose media type ${source.type} is not importable`,
          importer,
        );
    }
  }

  /** `import()`: the same rules; a problem rejects with an Error of its name (MW-14). */
  #dynamic(/** @type {string} */ specifier, /** @type {any} */ attributes, /** @type {any} */ phase, /** @type {string} */ importer) {
    return new SafePromise((done, failed) => {
      try {
        needMuchStack();
        const path = resolve(specifier, importer);
        if (phase !== undefined && phase !== "evaluation" && typeof phase === "string") {
          throw new ModuleProblem("unsupported_media_type", `"${specifier}" is imported in a phase that is not offered`, importer);
        }
        if (attributes && ReflectOwnKeys(attributes).length > 0) {
          throw new ModuleProblem("unsupported_media_type", `"${specifier}" is imported with attributes`, importer);
        }
        if (path === null) {
          throw new ModuleProblem("module_not_found", `"${specifier}" is no "./", "../" or "/" path inside the bundle`, importer);
        }
        const known = MapGet(this.modules, path);
        const module = known ?? this.#load(path);
        // In the middle of its own evaluation: it is done before the importer goes on.
        if (module.status === "evaluating") done(module);
        else PromiseThen(evaluate(module), () => done(module), failed);
      } catch (problem) {
        failed(problem instanceof ModuleProblem ? problem.error() : problem);
      }
    });
  }
}
Object.setPrototypeOf(Graph.prototype, null);

/** The message of an engine's error, read without running anything. */
function describeLinkError(/** @type {any} */ error) {
  const found = error !== null && typeof error === "object" ? ReflectGetOwnPropertyDescriptor(error, "message") : undefined;
  return found !== undefined && typeof found.value === "string" ? found.value : "the module cannot be linked";
}
