//! `sconce doctor`: the machine, the build, and every engine on every device with what was found.

use std::process::ExitCode;

use sconce::core::hardware::Hardware;
use sconce::core::obstacle::bytes;
use sconce::hub::Hub;
use sconce::planner::explain::grouped;
use sconce::prove::Depth;
use sconce::{Plan, Runtime, Wish};
use serde_json::json;

use crate::arguments;
use crate::manifest;
use crate::screen::{Bars, rendered, table};

pub(crate) fn run(arguments: &arguments::Doctor) -> anyhow::Result<ExitCode> {
    match &arguments.manifest {
        Some(_) => project(arguments),
        None => machine(arguments),
    }
}

fn project(arguments: &arguments::Doctor) -> anyhow::Result<ExitCode> {
    let diagnosis = manifest::examine(&manifest::Request {
        path: arguments.manifest.clone().unwrap_or_default(),
        target: arguments.target.clone(),
        features: arguments.features.clone(),
        all_features: arguments.all_features,
        no_default_features: arguments.no_default_features,
    })?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&diagnosis)?);
    } else {
        print!("{}", diagnosis.print());
    }
    Ok(if diagnosis.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn machine(arguments: &arguments::Doctor) -> anyhow::Result<ExitCode> {
    let runtime = Runtime::default();
    if arguments.fresh {
        runtime.forget();
    }
    let mut bars = Bars::default();
    let sample = sconce::card::sample();
    let plan = runtime.plan(&sample, &Wish::default(), Depth::Twin, &mut |event| bars.draw(&event))?;
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
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", page(&runtime, &plan, &hub));
        println!();
        for finding in ops {
            let placement = &finding.placement;
            let place = format!("{}/{}/{}", placement.engine, placement.device, placement.dtype);
            println!(
                "ops      {place}: {} of {} agree",
                finding.tried - finding.obstacles.len(),
                finding.tried
            );
            for obstacle in finding.obstacles {
                println!("         {obstacle}\n         hint: {}", obstacle.remedy());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn page(runtime: &Runtime, plan: &Plan, hub: &Hub) -> String {
    let hardware = runtime.hardware();
    let mut page = format!("sconce {}\n\n", env!("CARGO_PKG_VERSION"));
    page += &machine_lines(hardware);
    for engine in runtime.engines() {
        page += &format!("engine   {}: {}\n", engine.id(), engine.build());
    }
    let (folder, findings) = runtime.evidence();
    page += &format!("evidence {findings} findings in {}\n", folder.display());
    let state = if hub.offline { "offline" } else { "online" };
    let token = if hub.token.is_some() { "with a token" } else { "without a token" };
    page += &format!(
        "hub      {} ({state}, {token}), {} models in {}\n\n",
        hub.endpoint,
        hub.cached().len(),
        hub.cache.display()
    );

    page += "a small BERT on every engine and device, against f32 on the CPU:\n\n";
    let mut rows = table(&["", "engine", "device", "dtype", "error", "texts/s"]);
    for sound in plan.sound() {
        let placement = &sound.placement;
        rows.add_row(vec![
            "works".to_owned(),
            placement.engine.to_string(),
            placement.device.to_string(),
            placement.dtype.to_string(),
            sound.findings.error().map(|error| error.to_string()).unwrap_or_default(),
            format!("{:.1}", sound.texts_per_second),
        ]);
    }
    page += &format!("{}\n\n", rendered(&rows));
    for group in grouped(plan) {
        page += &format!("refused  {}  [{}]\n         {}\n", group.label, group.code, group.reason);
        if let Some(remedy) = group.remedy {
            page += &format!("         hint: {remedy}\n");
        }
    }
    page
}

fn machine_lines(hardware: &Hardware) -> String {
    let cpu = &hardware.cpu;
    let mut lines =
        format!("system   {} {}, {} of memory\n", hardware.os, hardware.arch, bytes(hardware.memory));
    lines += &format!("cpu      {}, {} cores, {}\n", cpu.model, cpu.cores, cpu.flags.join(" "));
    for gpu in &hardware.gpus {
        let driver =
            gpu.driver.as_ref().map_or("no driver answers".to_owned(), |driver| format!("driver {driver}"));
        let memory = gpu.memory.map(|memory| format!(", {}", bytes(memory))).unwrap_or_default();
        lines += &format!("gpu      {}{memory}, {driver} (seen by {})\n", gpu.name, gpu.seen_by);
    }
    if hardware.gpus.is_empty() {
        lines += "gpu      none seen\n";
    }
    for tool in &hardware.tools {
        lines += &format!("asked    {}: {}, {:.0} ms\n", tool.name, tool.outcome, tool.seconds * 1e3);
    }
    lines
}
