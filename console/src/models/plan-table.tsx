// The plan of a model: every placement with its evidence, or its obstacle and what removes it.
import type { ComponentChildren } from "preact";
import type { Accuracy, Findings, Plan, Refusal, Viable } from "../server/report";
import { placementName } from "../server/report";
import { bytes, distance, number } from "../ui/format";
import { HintText } from "../ui/parts";

export function PlanTable({ plan, generates }: { plan: Plan; generates: boolean }) {
    const viable = [...(plan.chosen ? [plan.chosen] : []), ...plan.fallbacks];
    const reference = plan.reference && `${placementName(plan.reference)} ${plan.reference.weights}`;
    return (
        <>
            {reference && (
                <p class="note">
                    Errors are distances from the reference <code>{reference}</code>.
                </p>
            )}
            <div class="scroll" tabIndex={0} role="group" aria-label="Placements">
                <table class="plan">
                    <thead>
                        <tr>
                            <th scope="col">Placement</th>
                            <th scope="col">State</th>
                            <th scope="col">Band</th>
                            <th scope="col" class="number">
                                {generates ? "Tokens/s of 8" : "Texts/s"}
                            </th>
                            <th scope="col">Evidence, or obstacle and hint</th>
                        </tr>
                    </thead>
                    <tbody>
                        {viable.map((one, at) => (
                            <ViableRow viable={one} state={plan.chosen && at === 0 ? "chosen" : "fallback"} />
                        ))}
                        {plan.refused.map(({ placement, why }) => (
                            <Row name={placementName(placement)} weights={placement.weights} state={stateOf(why)} band={bandOf(why)} speed="">
                                <RefusalText why={why} />
                            </Row>
                        ))}
                    </tbody>
                </table>
            </div>
        </>
    );
}

interface RowProps {
    name: string;
    weights: string;
    state: string;
    band: string;
    speed: string;
    children: ComponentChildren;
}

function Row({ name, weights, state, band, speed, children }: RowProps) {
    return (
        <tr class={state === "chosen" ? "chosen" : ""}>
            <th scope="row">
                <code>{name}</code>
                <small>{weights}</small>
            </th>
            <td>{state}</td>
            <td>{band}</td>
            <td class="number">{speed}</td>
            <td>{children}</td>
        </tr>
    );
}

function ViableRow({ viable, state }: { viable: Viable; state: string }) {
    const { placement, band, texts_per_second: speed, note, findings } = viable;
    return (
        <Row name={placementName(placement)} weights={placement.weights} state={state} band={band} speed={number(speed)}>
            <ul class="evidence">{evidenceOf(findings).map((line) => <li>{line}</li>)}</ul>
            {note && <p class="note">{note.message}</p>}
        </Row>
    );
}

/** What probes found, one sentence each. */
function evidenceOf({ twin, canary, speed }: Findings): string[] {
    const lines = [];
    if (twin?.Ok) lines.push(`twin: ${number(twin.Ok.cases)} cases, error ${distance(twin.Ok.error)}`);
    if (canary?.Ok) {
        const { error, tokens_per_second: rate, memory, accuracy } = canary.Ok;
        const taken = memory ? `, ${bytes(memory)}` : "";
        lines.push(`canary: error ${distance(error)}, ${number(rate)} tokens/s${taken}`);
        if (accuracy) lines.push(accuracyOf(accuracy));
    }
    if (speed?.Ok) lines.push(`speed: ${speed.Ok.length} measurements`);
    return lines.length > 0 ? lines : ["none"];
}

function accuracyOf({ texts, min_cosine, max_error, perplexity, reference_perplexity, top1_agreement, rank_correlation }: Accuracy): string {
    const rank = `rank correlation ${rank_correlation.toFixed(4)}`;
    if (min_cosine !== undefined) return `accuracy of ${texts} texts: cosine at least ${min_cosine.toFixed(5)}, ${rank}`;
    if (max_error !== undefined) return `accuracy of ${texts} pairs: score error at most ${distance(max_error)}, ${rank}`;
    const same = `${((top1_agreement ?? 0) * 100).toFixed(1)} % equal next tokens`;
    return `accuracy of ${texts} texts: perplexity ${number(perplexity)}, reference ${number(reference_perplexity)}, ${same}`;
}

function stateOf(why: Refusal): string {
    if (typeof why === "string") return why.replaceAll("_", " ");
    return "obstacle" in why ? why.obstacle.code.replaceAll("_", " ") : "band too wide";
}

function bandOf(why: Refusal): string {
    return typeof why === "object" && "band" in why ? why.band.band : "";
}

function RefusalText({ why }: { why: Refusal }) {
    if (why === "not_requested") return <>The settings of the server exclude it.</>;
    if (why === "not_tried") return <>It was not probed.</>;
    if ("band" in why) {
        return (
            <>
                Error {distance(why.band.error)}: outside of the band that the server accepts.
            </>
        );
    }
    return (
        <>
            <p>
                <HintText text={why.obstacle.message} />
            </p>
            {why.obstacle.remedy && (
                <p class="hint">
                    <strong>Hint:</strong> <HintText text={why.obstacle.remedy} />
                </p>
            )}
        </>
    );
}
