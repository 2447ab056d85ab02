/** A reader of simple CSV: a header line, commas, no quotes, "NA" for a missing value. */

/**
 * @param {string} text
 * @returns {Record<string, string | null>[]} one object for each line, keyed by the header
 */
export function parseCsv(text) {
  const [header, ...lines] = text.trim().split(/\r?\n/u);
  const keys = header.split(",");
  return lines.map((line, at) => {
    const cells = line.split(",");
    if (cells.length !== keys.length) throw new Error(`line ${at + 2} has ${cells.length} cells, not ${keys.length}`);
    return Object.fromEntries(keys.map((key, index) => [key, cells[index] === "NA" ? null : cells[index]]));
  });
}
