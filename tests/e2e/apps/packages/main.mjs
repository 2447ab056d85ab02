// Uses three unmodified packages in steps. Their modules are put beside this file when the test runs.
import { marked } from "./marked/lib/marked.esm.js";
import groupBy from "./lodash-es/groupBy.js";
import sortBy from "./lodash-es/sortBy.js";
import v5 from "./uuid/dist/v5.js";
import validate from "./uuid/dist/validate.js";

export class Publish {
  async run(event, step) {
    const html = await step.do("render", () => ({ text: marked.parse(event.params.markdown) }));
    const grouped = await step.do("group", () => {
      const groups = groupBy(event.params.words, (word) => word.length);
      return { lengths: sortBy(Object.keys(groups), Number), groups };
    });
    const name = await step.do("name", () => {
      const id = v5("https://example.com/report", v5.URL);
      return { id, valid: validate(id) };
    });
    return { html: html.text, ...grouped, ...name };
  }
}

export default {};
