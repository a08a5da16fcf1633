//! Attention and recurrent layers, whose weights PyTorch stores fused.

use burn::nn::{
    BiGru, BiGruConfig, BiLstm, BiLstmConfig, BiRnn, BiRnnConfig, Gru, GruConfig, Lstm, LstmConfig,
    Rnn, RnnConfig,
    attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig},
};

use super::*;

/// The layers of `tests/fixtures/weights.py`.
#[derive(Module, Debug)]
struct Fused {
    attention: MultiHeadAttention,
    lstm: Lstm,
    gru: Gru,
    rnn: Rnn,
    both_lstm: BiLstm,
    both_gru: BiGru,
    both_rnn: BiRnn,
}

fn fused() -> Fused {
    let device = Device::flex().autodiff();
    Fused {
        attention: MultiHeadAttentionConfig::new(4, 2).init(&device),
        lstm: LstmConfig::new(4, 3, true).init(&device),
        gru: GruConfig::new(4, 3, true).init(&device),
        rnn: RnnConfig::new(4, 3, true).init(&device),
        both_lstm: BiLstmConfig::new(4, 3, true).init(&device),
        both_gru: BiGruConfig::new(4, 3, true).init(&device),
        both_rnn: BiRnnConfig::new(4, 3, true).init(&device),
    }
}

fn of_pytorch_file() -> (Fused, Vec<String>) {
    load(fused(), &fixture("weights_fused.pt"), &[], false).unwrap()
}

#[test]
fn fused_layers_of_pytorch_are_split() {
    let (model, lines) = of_pytorch_file();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("split      40 tensors")),
        "{lines:?}"
    );
    let model = model.valid();
    let sequence = TensorData::new(of_fixture("sequence"), [1, 5, 4]);
    let x = || Tensor::<3>::from_data(sequence.clone(), &Device::flex());
    let attended = model.attention.forward(MhaInput::self_attn(x())).context;
    for (name, outputs) in [
        ("attention", attended),
        ("lstm", model.lstm.forward(x(), None).0),
        ("gru", model.gru.forward(x(), None)),
        ("rnn", model.rnn.forward(x(), None).0),
        ("both_lstm", model.both_lstm.forward(x(), None).0),
        ("both_gru", model.both_gru.forward(x(), None).0),
        ("both_rnn", model.both_rnn.forward(x(), None).0),
    ] {
        let difference = difference(name, outputs);
        assert!(difference < 1e-6, "{name}: {difference}");
    }
}

#[test]
fn an_export_has_the_names_shapes_and_values_of_pytorchs_layers() {
    let folder = tempdir().unwrap();
    let (model, _) = of_pytorch_file();
    let path = folder.path().join("exported");
    export::write(&model, &to(&path, WeightFormat::PytorchNames), &[]).unwrap();
    assert_eq!(contents(&path), contents(&fixture("weights_fused.pt")));
    let (again, _) = load(fused(), &path, &[], false).unwrap();
    assert_eq!(bits(&again), bits(&model));
}

/// Layers without biases, and one of the task's own with the fields of Burn's attention.
#[derive(Module, Debug)]
struct Others {
    encoder: Either,
    own: Own,
}

/// Files of PyTorch have no names of variants.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
enum Either {
    #[allow(dead_code)]
    Plain(Linear),
    Recurrent(Gru),
}

#[derive(Module, Debug)]
struct Own {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
}

fn others() -> Others {
    let device = Device::flex().autodiff();
    let linear = || LinearConfig::new(2, 2).with_bias(false).init(&device);
    Others {
        encoder: Either::Recurrent(GruConfig::new(2, 3, false).init(&device)),
        own: Own {
            query: linear(),
            key: linear(),
            value: linear(),
            output: linear(),
        },
    }
}

#[test]
fn layers_of_the_task_and_layers_without_biases_keep_their_names() {
    let folder = tempdir().unwrap();
    let model = others();
    // As a file of another program would have them.
    let names: WeightNames = &[(r"^net\.0\.", "encoder."), (r"^net\.1\.", "own.")];
    let path = folder.path().join("exported");
    export::write(&model, &to(&path, WeightFormat::PytorchNames), names).unwrap();
    let tensors = contents(&path);
    let shapes = tensors
        .iter()
        .map(|(name, data)| (&**name, data.shape().to_vec()));
    assert_eq!(
        shapes.collect::<Vec<_>>(),
        [
            ("net.0.weight_hh_l0", vec![9, 3]),
            ("net.0.weight_ih_l0", vec![9, 2]),
            ("net.1.key.weight", vec![2, 2]),
            ("net.1.output.weight", vec![2, 2]),
            ("net.1.query.weight", vec![2, 2]),
            ("net.1.value.weight", vec![2, 2]),
        ]
    );
    let (again, _) = load(others(), &path, names, false).unwrap();
    assert_eq!(bits(&again), bits(&model));
    // A site may name what is fused.
    ensure_names(&model, &[("^gru", "encoder.weight_ih_l0")]).unwrap();
}

#[test]
fn renames_without_a_way_back_are_refused_or_named() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("exported");
    let names: WeightNames = &[("^(net|model)\\.", "own.")];
    let error = save(&others(), &path, WeightFormat::PytorchNames, names).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.starts_with("cannot write "), "{error}");
    assert!(
        error.contains("TODO(model.weights): WEIGHT_NAMES cannot be read backwards"),
        "{error}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // The command writes the names of the model, and says so.
    let export = to(&path, WeightFormat::PytorchNames);
    let said = export::write_or_say_why_not(&others(), &export, names).unwrap();
    assert!(
        said.contains("those of src/model.rs") && said.contains("^(net|model)"),
        "{said}"
    );
    assert!(
        contents(&path)
            .iter()
            .any(|(name, _)| name == "own.key.weight")
    );
    let names: WeightNames = &[("^net\\.", "own.")];
    let export = Export {
        force: true,
        ..export
    };
    assert_eq!(
        export::write_or_say_why_not(&others(), &export, names).unwrap(),
        ""
    );
    assert!(
        contents(&path)
            .iter()
            .any(|(name, _)| name == "net.key.weight")
    );
}
