//! Plots throughput by batch size and by text length, a line per runner, and the roofline of this machine.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};
use sconce::Device;
use sconce::core::placement::Dtype;

use super::point::Point;
use super::report::Report;
use super::runner::Runner;
use crate::output_file::OutputFile;

const SIZE: (u32, u32) = (1280, 980);
const HEAD: u32 = 48;
const LEGEND_ROW: i32 = 24;
const LEGEND_WIDTH: i32 = 426;
const LEGEND_COLUMNS: i32 = 3;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
const GREY: RGBColor = RGBColor(120, 120, 120);
/// The color-blind-safe palette of Okabe and Ito.
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// The output file, with the format of its extension.
pub(super) struct Plot {
    path: PathBuf,
    file: OutputFile,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Svg,
    Png,
}

/// The line of one runner.
struct Line {
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

/// One chart.
struct Panel {
    title: String,
    x_label: &'static str,
    y_label: &'static str,
    lines: Vec<Line>,
    /// Gray lines, each with a label at its right end.
    bounds: Vec<(Vec<(f64, f64)>, String)>,
}

impl Plot {
    pub(super) fn at(path: &Path) -> anyhow::Result<Plot> {
        let kind = match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Kind::Svg,
            Some("png") => Kind::Png,
            Some(_) | None => {
                bail!("unsupported plot format, expected `.svg` or `.png`: `{}`", path.display())
            }
        };
        // Report an unwritable file before the long work starts.
        let file = OutputFile::create(path)?;
        Ok(Plot { path: path.to_owned(), file, kind })
    }

    pub(super) fn draw(self, report: &Report<'_>) -> anyhow::Result<()> {
        register_font(FONT, FontStyle::Normal, dejavu::sans::regular())
            .map_err(|_| anyhow!("could not load the font"))?;
        let path = self.file.path();
        let drawn = match self.kind {
            Kind::Svg => {
                let area = SVGBackend::new(&path, SIZE).into_drawing_area();
                draw_all(&area, report).map_err(anyhow::Error::from)
            }
            Kind::Png => {
                let area = BitMapBackend::new(&path, SIZE).into_drawing_area();
                draw_all(&area, report).map_err(anyhow::Error::from)
            }
        };
        drawn.with_context(|| format!("could not draw: `{}`", self.path.display()))?;
        self.file.commit()
    }
}

type Area<B> = DrawingArea<B, Shift>;
type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

fn draw_all<B: DrawingBackend>(area: &Area<B>, report: &Report<'_>) -> Drawn<B> {
    area.fill(&WHITE)?;
    let runners: Vec<(&Runner, RGBColor)> = report
        .runners
        .iter()
        .filter(|runner| !runner.sweep.by_batch.is_empty())
        .zip(COLORS.into_iter().cycle())
        .collect();
    let rows = runners.chunks(LEGEND_COLUMNS as usize).map(|_| LEGEND_ROW).sum::<i32>();
    let (head, rest) = area.split_vertically(HEAD);
    let (legend_area, panels) = rest.split_vertically(rows + 8);
    head.draw(&Text::new(
        format!("sconce bench: {}", report.model),
        (20, 16),
        (FONT, 22).into_font().color(&INK),
    ))?;
    legend(&legend_area, report, &runners)?;

    let lines = |points: &dyn Fn(&Runner) -> Vec<(f64, f64)>| {
        let line = |(runner, color): &(&Runner, RGBColor)| Line { color: *color, points: points(runner) };
        runners.iter().map(line).collect::<Vec<_>>()
    };
    let batch =
        |runner: &Runner| runner.sweep.by_batch.iter().map(|p| (p.texts as f64, p.texts_per_s())).collect();
    let of = |rate: fn(&Point) -> f64| {
        move |runner: &Runner| runner.sweep.by_length.iter().map(|p| (p.length(), rate(p))).collect()
    };
    let all = [
        Panel {
            title: "texts/s by batch, texts of 64 tokens".to_owned(),
            x_label: "texts per call",
            y_label: "texts/s",
            lines: lines(&batch),
            bounds: Vec::new(),
        },
        Panel {
            title: "texts/s by length, 32 texts per call".to_owned(),
            x_label: "tokens per text",
            y_label: "texts/s",
            lines: lines(&of(Point::texts_per_s)),
            bounds: Vec::new(),
        },
        Panel {
            title: "tokens/s by length, 32 texts per call".to_owned(),
            x_label: "tokens per text",
            y_label: "tokens/s",
            lines: lines(&of(Point::tokens_per_s)),
            bounds: Vec::new(),
        },
        roofline(report, &runners),
    ];
    for (panel, area) in all.iter().zip(panels.split_evenly((2, 2))) {
        chart(&area, panel)?;
    }
    area.present()
}

/// The legend.
fn legend<B: DrawingBackend>(
    area: &Area<B>,
    report: &Report<'_>,
    runners: &[(&Runner, RGBColor)],
) -> Drawn<B> {
    let places = (0..).flat_map(|row| (0..LEGEND_COLUMNS).map(move |column| (row, column)));
    let several = |runner: &Runner| {
        let weights = |other: &Runner| other.placement().map(|placement| placement.weights.clone());
        runners.iter().any(|(other, _)| other.placement().is_some() && weights(other) != weights(runner))
    };
    for ((row, column), (runner, color)) in places.zip(runners) {
        let (x, y) = (20 + column * LEGEND_WIDTH, 12 + row * LEGEND_ROW);
        area.draw(&PathElement::new(vec![(x, y), (x + 30, y)], color.stroke_width(3)))?;
        area.draw(&Circle::new((x + 15, y), 4, color.filled()))?;
        let mut name = match runner.placement() {
            Some(placement) if !several(runner) => {
                format!("{} {} {}", placement.engine, placement.device, placement.dtype)
            }
            Some(_) | None => runner.name(),
        };
        let _ = write!(name, ", {} texts/s", number(report.lengths.len() as f64 / runner.seconds));
        if let Some(share) = report.gemm_share(runner) {
            let _ = write!(name, ", {:.0} % of GEMM peak", share * 100.0);
        }
        area.draw(&Text::new(name, (x + 40, y - 7), (FONT, 15).into_font().color(&INK)))?;
    }
    Ok(())
}

/// The roofline: each runner with one short text and with growing batches, below the limits of bandwidth and GEMM.
fn roofline(report: &Report<'_>, runners: &[(&Runner, RGBColor)]) -> Panel {
    let peak = &report.peak;
    let mut lines = Vec::new();
    for (runner, color) in runners {
        let placement = runner.placement().filter(|placement| placement.device == Device::Cpu);
        let (Some(placement), Some(work)) = (placement, report.work) else { continue };
        let point = |length: usize, texts: usize, seconds: f64| {
            let flops = work.flops(&vec![length; texts]);
            (flops / work.bytes(placement.dtype), flops / seconds / 1e9)
        };
        let latency = point(report.short, 1, runner.latency);
        let batches = runner.sweep.by_batch.iter();
        let batches = batches.map(|p| point(p.length().round() as usize, p.texts, p.seconds));
        lines.push(Line { color: *color, points: [latency].into_iter().chain(batches).collect() });
    }
    let across = range(lines.iter().flat_map(|line| &line.points).map(|point| point.0));
    let bound = |dtype: Dtype| {
        let most = peak.gflops(dtype)?;
        let corner = most / peak.bandwidth_gb_s;
        let mut points = vec![(corner.clamp(across.start, across.end), most), (across.end, most)];
        if corner > across.start {
            points.insert(0, (across.start, across.start * peak.bandwidth_gb_s));
        }
        Some((points, format!("{dtype} GEMM, {most:.0} GFLOP/s")))
    };
    let bounds = [Dtype::F32, Dtype::Bf16].into_iter().filter_map(bound).collect();
    Panel {
        title: format!("roofline of this machine: {:.1} GB/s memory bandwidth", peak.bandwidth_gb_s),
        x_label: "arithmetic intensity (FLOP per byte of weights): one short text, then growing batches",
        y_label: "GFLOP/s",
        lines,
        bounds,
    }
}

fn chart<B: DrawingBackend>(area: &Area<B>, panel: &Panel) -> Drawn<B> {
    let bounds = panel.bounds.iter().flat_map(|(points, _)| points);
    let all: Vec<(f64, f64)> =
        panel.lines.iter().flat_map(|line| &line.points).chain(bounds).copied().collect();
    let (across, up) = (range(all.iter().map(|point| point.0)), range(all.iter().map(|point| point.1)));
    // Space above for the labels of the bounds.
    let up = up.start..up.end * 1.25;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, (FONT, 17).into_font().color(&INK))
        .margin(12)
        .margin_right(24)
        .x_label_area_size(46)
        .y_label_area_size(66)
        .build_cartesian_2d(
            across.clone().log_scale().with_key_points(doublings(&across)),
            up.clone().log_scale().with_key_points(ticks(&up)),
        )?;
    chart
        .configure_mesh()
        .x_desc(panel.x_label)
        .y_desc(panel.y_label)
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.6))
        .label_style((FONT, 13).into_font().color(&INK))
        .axis_desc_style((FONT, 14).into_font().color(&INK))
        .draw()?;
    for (points, words) in &panel.bounds {
        chart.draw_series(LineSeries::new(points.iter().copied(), GREY.stroke_width(2)))?;
        if let Some(&(x, y)) = points.last() {
            let place = Pos::new(HPos::Right, VPos::Bottom);
            let place = (FONT, 13).into_font().color(&GREY).pos(place);
            chart.draw_series([Text::new(words.clone(), (x, y * 1.03), place)])?;
        }
    }
    for line in &panel.lines {
        chart.draw_series(LineSeries::new(line.points.iter().copied(), line.color.stroke_width(2)))?;
        chart.draw_series(line.points.iter().map(|point| Circle::new(*point, 3, line.color.filled())))?;
    }
    Ok(())
}

/// The range of the positive values, never empty.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) = values
        .filter(|value| value.is_finite() && *value > 0.0)
        .fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    if least < most { least * 0.9..most * 1.1 } else { 0.5..2.0 }
}

/// Round tick values in a range.
fn ticks(range: &Range<f64>) -> Vec<f64> {
    let wide = range.end / range.start > 30.0;
    let steps: &[f64] = if wide { &[1.0, 2.0, 5.0] } else { &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0] };
    let round = (-3..12).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
    round.filter(|tick| range.contains(tick)).collect()
}

/// Powers of two in a range.
fn doublings(range: &Range<f64>) -> Vec<f64> {
    (-10..40).map(|power| 2_f64.powi(power)).filter(|tick| range.contains(tick)).collect()
}

/// `950`, `12k`, `1.5M`.
fn number(value: f64) -> String {
    let short = |value: f64| {
        let text = format!("{value:.1}");
        text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
    };
    match value {
        value if value >= 1e6 => format!("{}M", short(value / 1e6)),
        value if value >= 1e4 => format!("{}k", short(value / 1e3)),
        value => short(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers_and_are_never_empty() {
        assert_eq!(ticks(&(0.9..90.0)), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(range([].into_iter()), 0.5..2.0);
        assert_eq!(range([f64::NAN, 0.0, 3.0].into_iter()), 0.5..2.0);
        assert_eq!([0.5, 128.0, 12_000.0, 1.5e6].map(number), ["0.5", "128", "12k", "1.5M"]);
    }
}
