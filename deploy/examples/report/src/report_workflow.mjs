/** The workflow of the example: from a data set to an approved report, one journaled step after another. */
import penguins from "../data/penguins.csv";
import { parseCsv } from "./csv.mjs";
import { mark } from "./effects.mjs";
import { correlation, describe } from "./statistics.mjs";

const MEASURES = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"];
/** The draft goes wrong this often before it succeeds, so that retries can be seen. */
const FAILING_RUNS = 2;

/** @param {number} seconds */
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

export class ReportWorkflow {
  /** @param {{EFFECTS: any, CORRELATION_SECONDS: number, DRYING_SECONDS: number}} env */
  constructor(env) {
    this.env = env;
  }

  /**
   * @param {{instanceId: string, params: {by: string, group: string}}} event `by` is a column, `group` its value
   * @param {any} step
   */
  async run({ instanceId, params }, step) {
    const { env } = this;

    const parsed = await step.do("parse", async () => {
      await mark(env, instanceId, "parse");
      const rows = parseCsv(penguins).filter((row) => row[params.by] === params.group);
      const complete = rows.filter((row) => MEASURES.every((measure) => row[measure] !== null));
      if (complete.length < 2) throw new Error(`too few penguins with ${params.by} = ${params.group}`);
      const series = Object.fromEntries(MEASURES.map((key) => [key, complete.map((row) => Number(row[key]))]));
      return { series, incomplete: rows.length - complete.length };
    });

    const aggregated = await step.do("aggregate", async () => {
      await mark(env, instanceId, "aggregate");
      return Object.fromEntries(MEASURES.map((measure) => [measure, describe(parsed.series[measure])]));
    });

    const draft = await step.do(
      "draft",
      async () => {
        const run = await mark(env, instanceId, "draft");
        if (run <= FAILING_RUNS) throw new Error(`the printer jammed (run ${run})`);
        return { title: `Penguins: ${params.by} ${params.group}`, printedInRun: run };
      },
      { maxAttempts: 6, initialDelaySeconds: 1, backoff: "constant" },
    );

    const related = await step.do("correlate", async () => {
      const run = await mark(env, instanceId, "correlate");
      // Whoever was cut off in the first run need not wait as long again.
      if (run === 1) await pause(env.CORRELATION_SECONDS);
      return { massAndFlipper: correlation(parsed.series.body_mass_g, parsed.series.flipper_length_mm) };
    });

    await step.sleep("dry", env.DRYING_SECONDS);

    const approval = await step.waitForEvent("approval", { type: "approval", timeoutSeconds: 3600 });

    return step.do("seal", async () => {
      await mark(env, instanceId, "seal");
      return {
        title: draft.title,
        measures: aggregated,
        correlation: related,
        incomplete: parsed.incomplete,
        approvedBy: approval.by,
      };
    });
  }
}
