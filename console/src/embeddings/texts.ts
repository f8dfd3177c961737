// Texts that were pasted, one per line.

/** Maximum number of texts. */
export const MOST_TEXTS = 2000;

export interface LabeledText {
    text: string;
    /** What precedes a tab; the map colors points by it. */
    label: string;
}

/** The texts of all lines that are not empty. A label and a tab may precede a text. */
export function parseTexts(pasted: string): LabeledText[] {
    const lines = pasted.split(/\r?\n/).map((line) => line.trim());
    return lines.filter(Boolean).map((line) => {
        const tab = line.indexOf("\t");
        const [label, text] = tab > 0 ? [line.slice(0, tab).trim(), line.slice(tab + 1).trim()] : ["", line];
        return text ? { label, text } : { label: "", text: label };
    });
}

export const EXAMPLE = [
    ["light", "A sconce holds a candle on a wall."],
    ["light", "The candle flickered in its bracket."],
    ["light", "An oil lamp burned all night in the hall."],
    ["light", "She lit the chandelier before dinner."],
    ["sea", "The harbour was quiet after the storm."],
    ["sea", "Fishing boats left the port at dawn."],
    ["sea", "Waves broke over the sea wall."],
    ["sea", "The lighthouse keeper watched the tide."],
    ["code", "The compiler rejected the borrowed reference."],
    ["code", "A unit test failed after the refactoring."],
    ["code", "The function returns an iterator over lines."],
    ["code", "Memory is freed when the owner goes out of scope."],
]
    .map((pair) => pair.join("\t"))
    .join("\n");
