//! A fake of a generated program that accepts its options but does not train. The variable FAKE
//! injects a fault.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write,
    path::PathBuf,
    process::exit,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

static STOP: AtomicBool = AtomicBool::new(false);

#[cfg(unix)]
fn listen() {
    extern "C" fn stop(_: i32) {
        STOP.store(true, Ordering::Relaxed);
    }
    unsafe extern "C" {
        fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    }
    // SAFETY: storing into an atomic is allowed in a handler.
    unsafe { signal(15, stop) };
}

#[cfg(not(unix))]
fn listen() {}

fn main() {
    listen();
    let fault = env::var("FAKE").unwrap_or_default();
    let mut options: BTreeMap<String, String> = BTreeMap::new();
    let mut arguments = env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = match name.as_str() {
            "--resume" => String::new(),
            _ => arguments.next().expect("a value"),
        };
        options.insert(name, value);
    }
    let number = |name: &str| options[name].parse::<u64>().expect("a number");
    let replicas = number("--replicas");
    match fault.as_str() {
        "fails" => {
            eprintln!("error: the loss is no number");
            exit(1);
        }
        "panics" => panic!("the model is upside down"),
        "hangs" => thread::sleep(Duration::from_secs(100)),
        _ => {}
    }
    let folder = PathBuf::from(&options["--output-dir"]);
    let checkpoints = folder.join("checkpoints");
    let log = folder.join("metrics.jsonl");
    let resumes = options.contains_key("--resume") && fault != "forgets";
    if !resumes && checkpoints.exists() {
        fs::rename(&checkpoints, folder.join("checkpoints.1")).unwrap();
        fs::rename(&log, folder.join("metrics.1.jsonl")).ok();
    }
    fs::create_dir_all(&checkpoints).unwrap();
    let mut step = 0;
    if resumes {
        let names = fs::read_dir(&checkpoints).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let latest = names.max().unwrap_or_else(|| "step-0".into());
        step = latest["step-".len()..].parse().unwrap();
        let text = fs::read_to_string(&log).unwrap_or_default();
        let kept = text.lines().take(2 * (step / 4) as usize);
        let kept: String = kept.map(|line| format!("{line}\n")).collect();
        fs::write(&log, kept).unwrap();
        println!("resumed after step {step}");
    }
    if fault == "silent" {
        return;
    }
    let write = |text: String| {
        let file = fs::OpenOptions::new().create(true).append(true).open(&log);
        file.unwrap().write_all(text.as_bytes()).unwrap();
    };
    let steps = number("--steps-per-epoch");
    let end = steps * number("--epochs");
    let examples = steps * replicas * number("--batch-size");
    while step < end {
        if fault != "fast" {
            thread::sleep(Duration::from_millis(25));
        }
        step += 1;
        let epoch = step.div_ceil(steps);
        if step % steps == 0 {
            let loss = match fault.as_str() {
                "nan" => "null".to_owned(),
                "differs" if resumes && epoch == 2 => "0.75".to_owned(),
                // Two replicas may have other numbers than one.
                _ => (1.0 / (step + replicas) as f64).to_string(),
            };
            let examples = match fault.as_str() {
                "loses" if replicas == 2 => examples - 1,
                _ => examples,
            };
            for split in ["train", "validation"] {
                write(format!(
                    "{{\"split\":\"{split}\",\"epoch\":{epoch},\"step\":{step},\
                     \"examples\":{examples},\"loss\":{loss},\"seconds\":{}}}\n",
                    std::process::id()
                ));
            }
        }
        if step % number("--checkpoint-steps") == 0 && fault != "keeps-nothing" {
            fs::create_dir_all(checkpoints.join(format!("step-{step}"))).unwrap();
        }
        // A fast training may end before a signal arrives, even on a busy machine.
        if fault != "fast" && STOP.load(Ordering::Relaxed) {
            if fault == "dies" {
                eprintln!("error: no checkpoint could be written");
                exit(1);
            }
            fs::create_dir_all(checkpoints.join(format!("step-{step}"))).unwrap();
            return;
        }
    }
    write(format!(
        "{{\"split\":\"test\",\"epoch\":3,\"step\":{step},\"examples\":9,\"loss\":0.5}}\n"
    ));
}
