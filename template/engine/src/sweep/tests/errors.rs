//! Errors of files of sweeps.

use super::*;

/// The first lines of the errors, without the path.
fn refused(text: &str) -> Vec<String> {
    let errors = match parse("a/tries.toml", text, &command(), BEST) {
        Err(errors) => errors,
        Ok(definition) => panic!("{text:?} is accepted: {definition:?}"),
    };
    let first = |error: &String| {
        let line = error.lines().next().unwrap();
        line.trim_start_matches("a/tries.toml:").to_owned()
    };
    errors.iter().map(first).collect()
}

#[test]
fn each_error_has_its_place() {
    let mut others = Vec::new();
    for (text, expected) in [
        ("[grid]\nepochs = [", "2:11: unclosed array"),
        (
            "[gird]\nepochs = [1]",
            "1:2: unknown table `gird`; the nearest one is [grid]",
        ),
        (
            "metrik = 'a'",
            "1:1: unknown key `metrik`; the nearest one is `metric`",
        ),
        (
            "epoch = 3",
            "1:1: unknown option `epoch`; the nearest option is `epochs`",
        ),
        (
            "[base]\nqq = 3",
            "2:1: unknown option `qq`; --help lists all options",
        ),
        (
            "[grid]\nbatchsize = [3]",
            "2:1: unknown option `batchsize`; the nearest option is `batch_size`",
        ),
        (
            "[grid]\nbatchsize = []",
            "2:1: unknown option `batchsize`; the nearest",
        ),
        (
            "[grid]\nbatchsize = 3",
            "2:1: unknown option `batchsize`; the nearest",
        ),
        (
            "[grid]\nepochs = 3",
            "2:10: `epochs` takes an array of values in [grid], and this is an integer",
        ),
        ("[grid]\nepochs = []", "2:10: `epochs` has no value to try"),
        (
            "[grid]\nepochs = [3, 'a']",
            "2:14: `epochs` takes an integer, and this is a string",
        ),
        (
            "[grid]\nepochs = [3, 0]",
            "2:14: invalid value '0' for '--epochs",
        ),
        (
            "[grid]\nema = [0.5, 5e-1]",
            "2:13: `ema` has this value twice",
        ),
        (
            "epochs = 3\n[grid]\nepochs = [3]",
            "3:1: `epochs` is set twice: first in a/tries.toml:1:1",
        ),
        (
            "[grid]\nkeep = [3]\n[random]\nruns = 1\nkeep = { min = 1, max = 2 }",
            "5:1: `keep` is set twice: first in",
        ),
        (
            "output_dir = 'a'",
            "1:1: `output_dir` is set by the sweep for each run; `output` is the folder of all",
        ),
        ("resume = true", "1:1: `resume` is set by the sweep"),
        (
            "config = 'a'",
            "1:1: `config` is an option of the command line alone",
        ),
        ("checkpoint = 'a'", "1:1: `checkpoint` belongs to `test`"),
        (
            "epochs = 3",
            "a/tries.toml varies no option: add a table [grid]",
        ),
        ("grid = 3", "1:8: `grid` is a table, and this is an integer"),
        (
            "output = 3",
            "1:10: `output` takes a string, and this is an integer",
        ),
        ("output = ''", "1:10: `output` is empty"),
        (
            "parallel = 0",
            "1:12: `parallel` takes an integer from 1 to 64",
        ),
        (
            "metric = 'accuracy'",
            "1:10: `accuracy` has no split: give `validation.accuracy`",
        ),
        (
            "metric = 'test.accuracy'",
            "1:10: a test that chooses the options is no test of them",
        ),
        (
            "metric = 'validation.f1'\n[grid]\nkeep = [1]",
            "1:10: whether a high or a low `f1` is better is not known",
        ),
        (
            "direction = 'up'",
            "1:13: `direction` is \"highest\" or \"lowest\"",
        ),
        (
            "[random]\nema = { min = 0.1, max = 0.2 }",
            "1:2: [random] needs `runs`, the number of draws",
        ),
        (
            "[random]\nruns = 0",
            "2:8: `runs` takes an integer of at least 1",
        ),
        ("[random]\nruns = 3", "1:2: [random] has no option to draw"),
        (
            "[random]\nrun = 3",
            "2:1: unknown key `run`; the nearest one is `runs`",
        ),
        (
            "[random]\nruns = 3\nkeep = [1]",
            "3:8: `keep` takes a table in [random]",
        ),
        (
            "[random]\nruns = 3\nkep = { min = 1, max = 2 }",
            "3:1: unknown option `kep`; the nearest option is `keep`",
        ),
        (
            "[random]\nruns = 3\nkeep = { min = 1, mx = 2 }",
            "3:19: unknown key `mx`; there are `min`, `max`, `log` and `choices`",
        ),
        (
            "[random]\nruns = 3\nkeep = { min = 1 }",
            "3:8: `keep` takes { min = A, max = B }",
        ),
        (
            "[random]\nruns = 3\nkeep = { min = 2, max = 2 }",
            "3:16: `keep`: `min` must be below `max`, and 2 is not",
        ),
        (
            "[random]\nruns = 3\nkeep = { min = 1, max = 2.5 }",
            "3:25: `keep` takes an integer, and this is a float",
        ),
        (
            "[random]\nruns = 3\nkeep = { min = 0, max = 2 }",
            "3:16: invalid value '0' for '--keep",
        ),
        (
            "[random]\nruns = 3\nema = { min = 0, max = 0.5, log = true }",
            "3:15: `ema`: log = true needs a `min` above 0",
        ),
        (
            "[random]\nruns = 3\nema = { min = 0.1, max = 0.5, log = 1 }",
            "3:37: `log` is true or false, and this is an integer",
        ),
        (
            "[random]\nruns = 3\nstrategy = { min = 1, max = 2 }",
            "3:1: `strategy` takes a string, which has no range",
        ),
        (
            "[random]\nruns = 3\nkeep = { choices = 3 }",
            "3:20: `choices` is an array, and this is an integer",
        ),
        (
            "[random]\nruns = 3\nkeep = { choices = [] }",
            "3:20: `keep` has no value to try",
        ),
    ] {
        let lines = refused(text);
        if !lines.iter().any(|line| line.starts_with(expected)) {
            others.push((text, lines, expected));
        }
    }
    assert!(others.is_empty(), "{others:#?}");
    let lines = refused("[grid]\nepochs = [0]\nkeep = []\n[base]\nx = 1");
    assert_eq!(lines.len(), 3, "{lines:?}");
}
