/**
 * Every builtin that trusted code uses after tenant code may have run, captured while the realm is still untouched (W-051).
 *
 * Rule of this folder: code that can run next to a tenant calls no method by name on a builtin object (`map.get(k)`), because the
 * tenant may have replaced `Map.prototype.get`; it calls the captured function (`MapGet(map, k)`).
 */

const { bind, call } = Function.prototype;

/** @type {(fn: Function) => (self: any, ...args: any[]) => any} */
export const uncurryThis = bind.bind(call);

const getter = (/** @type {object} */ owner, /** @type {PropertyKey} */ key) =>
  uncurryThis(/** @type {any} */ (Object.getOwnPropertyDescriptor(owner, key)).get);

export const {
  apply: ReflectApply,
  construct: ReflectConstruct,
  getOwnPropertyDescriptor: ReflectGetOwnPropertyDescriptor,
  getPrototypeOf: ReflectGetPrototypeOf,
  isExtensible: ReflectIsExtensible,
  ownKeys: ReflectOwnKeys,
  defineProperty: ReflectDefineProperty,
  deleteProperty: ReflectDeleteProperty,
} = Reflect;
export const { freeze: ObjectFreeze, is: ObjectIs, hasOwn: ObjectHasOwn } = Object;
export const { isArray: ArrayIsArray } = Array;
export const { isInteger: NumberIsInteger, isFinite: NumberIsFinite } = Number;
const { stringify } = JSON;
export const { parse: JSONParse } = JSON;

export const ObjectPrototype = Object.prototype;
export const ArrayPrototype = Array.prototype;
export const ArrayPush = uncurryThis(Array.prototype.push);
export const ArrayPop = uncurryThis(Array.prototype.pop);
export const ArraySort = uncurryThis(Array.prototype.sort);
export const ArrayJoin = uncurryThis(Array.prototype.join);
export const ArrayShift = uncurryThis(Array.prototype.shift);

export const StringIsWellFormed = uncurryThis(String.prototype.isWellFormed);
export const StringToWellFormed = uncurryThis(String.prototype.toWellFormed);
export const StringCharCodeAt = uncurryThis(String.prototype.charCodeAt);
export const StringSlice = uncurryThis(String.prototype.slice);
export const StringSplit = uncurryThis(String.prototype.split);
export const StringStartsWith = uncurryThis(String.prototype.startsWith);
export const StringIncludes = uncurryThis(String.prototype.includes);
export const StringLastIndexOf = uncurryThis(String.prototype.lastIndexOf);

export const SafeMap = Map;
export const SafeSet = Set;
export const SafeWeakMap = WeakMap;
export const MapGet = uncurryThis(Map.prototype.get);
export const MapSet = uncurryThis(Map.prototype.set);
export const MapDelete = uncurryThis(Map.prototype.delete);
export const MapClear = uncurryThis(Map.prototype.clear);
export const MapForEach = uncurryThis(Map.prototype.forEach);
export const SetAdd = uncurryThis(Set.prototype.add);
export const SetHas = uncurryThis(Set.prototype.has);
export const SetDelete = uncurryThis(Set.prototype.delete);
export const WeakMapGet = uncurryThis(WeakMap.prototype.get);
export const WeakMapSet = uncurryThis(WeakMap.prototype.set);

export const SafePromise = Promise;
export const PromiseThen = uncurryThis(Promise.prototype.then);

export const SafeError = Error;
export const SafeTypeError = TypeError;

const TypedArray = Object.getPrototypeOf(Uint8Array);
export const SafeUint8Array = Uint8Array;
export const TypedArraySet = uncurryThis(TypedArray.prototype.set);
export const TypedArrayByteLength = getter(TypedArray.prototype, "byteLength");
export const TypedArrayTag = getter(TypedArray.prototype, Symbol.toStringTag);

export const RegExpExec = uncurryThis(RegExp.prototype.exec);
export const SymbolDispose = Symbol.dispose;

/** A JSON string literal of a primitive string: no `toJSON` is ever looked up for primitives. */
export const quote = (/** @type {string} */ text) => stringify(text);

/** An Error as Bindings and modules reject with it (F-12): its own, read-only, non-enumerable `name` is the code. */
export function namedError(/** @type {string} */ name, /** @type {string} */ message) {
  const error = name === "TypeError" ? new SafeTypeError(message) : new SafeError(message);
  if (name !== "TypeError") {
    ReflectDefineProperty(error, "name", {
      // @ts-ignore a null prototype keeps a polluted Object.prototype out of the descriptor
      __proto__: null,
      value: name,
      writable: false,
      enumerable: false,
      configurable: false,
    });
  }
  return error;
}
