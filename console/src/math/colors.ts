// The color scale of heat maps.

/** Stops of a scale that grows in lightness, so that it reads without color vision. */
const STOPS: [number, number, number][] = [
    [13, 8, 41],
    [66, 10, 104],
    [147, 38, 103],
    [221, 81, 58],
    [252, 165, 10],
    [252, 255, 164],
];

/** The color of a value between 0 and 1. */
export function heat(value: number): [number, number, number] {
    const place = Math.min(1, Math.max(0, value)) * (STOPS.length - 1);
    const at = Math.min(Math.floor(place), STOPS.length - 2);
    const [low, high] = [STOPS[at]!, STOPS[at + 1]!];
    const mix = (channel: 0 | 1 | 2) => Math.round(low[channel] + (high[channel] - low[channel]) * (place - at));
    return [mix(0), mix(1), mix(2)];
}

/** Black or white, whichever has more contrast with the color of a value. */
export function inkOn(value: number): string {
    const [red, green, blue] = heat(value).map((channel) => {
        const share = channel / 255;
        return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    }) as [number, number, number];
    const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    // The contrasts are equal at this luminance.
    return luminance > 0.179 ? "#000" : "#fff";
}
