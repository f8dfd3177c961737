// The axis of a chart.

/** The next of 1, 2 and 5 times a power of ten. */
export function ceiling(value: number): number {
    if (value <= 0) return 1;
    const power = 10 ** Math.floor(Math.log10(value));
    return ([1, 2, 5, 10].find((step) => step * power >= value * 0.999) ?? 10) * power;
}
