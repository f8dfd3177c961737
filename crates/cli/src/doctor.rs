//! `sconce doctor`: hardware, build, and the twin's result on every engine and device.

use std::fmt::Write;
use std::process::ExitCode;

use sconce::core::hardware::Hardware;
use sconce::core::obstacle::bytes;
use sconce::hub::Hub;
use sconce::planner::plan::Refusal;
use sconce::prove::{OpFindings, ProofDepth};
use sconce::{Constraints, Device, Placement, Plan, Runtime};
use serde_json::json;

use crate::arguments;
use crate::terminal::{ProgressBars, pluralize, print, print_json, refusals, rendered, table};

pub(crate) fn run(arguments: &arguments::Doctor) -> anyhow::Result<ExitCode> {
    match &arguments.manifest {
        Some(_) => project(arguments),
        None => machine(arguments),
    }
}

fn project(arguments: &arguments::Doctor) -> anyhow::Result<ExitCode> {
    let diagnosis = sconce_manifest::examine(&sconce_manifest::Request {
        path: arguments.manifest.clone().unwrap_or_default(),
        target: arguments.target.clone(),
        features: arguments.features.clone(),
        all_features: arguments.all_features,
        no_default_features: arguments.no_default_features,
    })?;
    if arguments.json {
        print_json(&diagnosis)?;
    } else {
        print(&sconce_manifest::render(&diagnosis))?;
    }
    Ok(if diagnosis.is_healthy() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn machine(arguments: &arguments::Doctor) -> anyhow::Result<ExitCode> {
    let runtime = Runtime::default();
    if arguments.fresh {
        runtime.forget();
    }
    let mut bars = ProgressBars::default();
    let sample = sconce::card::sample();
    let mut plan =
        runtime.plan(&sample, &Constraints::default(), ProofDepth::Twin, &mut |event| bars.draw(&event))?;
    // A graph needs a model's own file, and there is no model here.
    plan.refused.retain(|refused| refused.why != Refusal::NotTried);
    let ops = runtime.ops(&mut |event| bars.draw(&event));
    bars.clear();
    let hub = Hub::from_environment();
    if arguments.json {
        let (folder, findings) = runtime.evidence();
        let engines: Vec<_> =
            runtime.engines().iter().map(|e| json!({ "engine": e.id(), "build": e.build() })).collect();
        let report = json!({
            "version": env!("CARGO_PKG_VERSION"), "hardware": runtime.hardware(), "engines": engines, "plan": plan,
            "ops": ops, "evidence": { "folder": folder, "findings": findings },
            "hub": { "cache": hub.cache, "endpoint": hub.endpoint, "offline": hub.offline,
                     "token": hub.token.is_some(), "models": hub.cached().len() },
        });
        print_json(&report)?;
    } else {
        print(&format!("{}\n{}", render(&runtime, &plan, &hub), op_lines(&ops)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn op_lines(ops: &[OpFindings]) -> String {
    let mut lines = String::new();
    for finding in ops {
        let Placement { engine, device, dtype, .. } = &finding.placement;
        let agree = finding.tried - finding.obstacles.len();
        let _ = writeln!(lines, "ops      {engine}/{device}/{dtype}: {agree} of {} agree", finding.tried);
        for obstacle in &finding.obstacles {
            let _ = writeln!(lines, "         {obstacle}\n         hint: {}", obstacle.remedy());
        }
    }
    lines
}

fn render(runtime: &Runtime, plan: &Plan, hub: &Hub) -> String {
    let hardware = runtime.hardware();
    let mut page = format!("sconce {}\n\n", env!("CARGO_PKG_VERSION"));
    page += &machine_lines(hardware);
    for engine in runtime.engines() {
        let build = engine.build();
        let build: Vec<&str> = build.split_whitespace().collect();
        let _ = writeln!(page, "engine   {}: {}", engine.id(), build.join(" "));
        if engine.formats().iter().all(|format| format.is_graph()) && engine.supports(Device::Cpu).is_ok() {
            page += "         runs a model's own graphs; test it with `sconce plan MODEL`\n";
        }
    }
    let (folder, findings) = runtime.evidence();
    let _ = writeln!(page, "evidence {} in {}", pluralize(findings, "finding"), folder.display());
    let state = if hub.offline { "offline" } else { "online" };
    let token = if hub.token.is_some() { "with a token" } else { "without a token" };
    let _ = writeln!(
        page,
        "hub      {} ({state}, {token}), {} in {}\n",
        hub.endpoint,
        pluralize(hub.cached().len(), "model"),
        hub.cache.display()
    );

    page += "a small BERT on every engine and device, compared with f32 on the CPU:\n\n";
    let mut rows = table(&["", "engine", "device", "dtype", "error", "texts/s"]);
    for viable in plan.viable() {
        let placement = &viable.placement;
        rows.add_row(vec![
            "works".to_owned(),
            placement.engine.to_string(),
            placement.device.to_string(),
            placement.dtype.to_string(),
            viable.findings.error().map(|error| error.to_string()).unwrap_or_default(),
            format!("{:.1}", viable.texts_per_second),
        ]);
    }
    let _ = writeln!(page, "{}\n", rendered(&rows));
    page += &refusals(plan);
    page
}

fn machine_lines(hardware: &Hardware) -> String {
    let cpu = &hardware.cpu;
    let mut lines =
        format!("system   {} {}, {} of memory\n", hardware.os, hardware.arch, bytes(hardware.memory));
    let _ = writeln!(lines, "cpu      {}, {} cores, {}", cpu.model, cpu.cores, cpu.flags.join(" "));
    for gpu in &hardware.gpus {
        let driver =
            gpu.driver.as_ref().map_or("no driver found".to_owned(), |driver| format!("driver {driver}"));
        let memory = gpu.memory.map(|memory| format!(", {}", bytes(memory))).unwrap_or_default();
        let _ = writeln!(lines, "gpu      {}{memory}, {driver} (detected by {})", gpu.name, gpu.seen_by);
    }
    if hardware.gpus.is_empty() {
        lines += "gpu      none found\n";
    }
    for tool in &hardware.tools {
        let _ = writeln!(lines, "tool     {}: {}, {:.0} ms", tool.name, tool.outcome, tool.seconds * 1e3);
    }
    lines
}
