"""Where `--help` shows a setting. The settings say what they are; this says where a reader looks for them."""

from __future__ import annotations

_NAMES = {
    "": "preset",
    "data": "data source target size valid_size test_size corpus_seed vocabulary longest "
    "limit valid_share buckets crop flip",
    "model": "norm network width layers d_model ffn heads tie dropout embedding hidden",
    "levels": "nest ratio alone init start norms",
    "training": "method epochs max_steps max_tokens batch accumulate label_smoothing teacher teacher_weight "
    "lr lr_wide lr_deep warm_up schedule warmup_init_lr momentum beta1 beta2 eps weight_decay clip_norm precision seed",
    "search": "beam lenpen look_bleu",
    "criteria": "measure_every probe measure_layers measure_batches",
    "run": "out evaluate_every checkpoint_every keep threads tensorboard track",
}

GROUPS: dict[str, list[str]] = {group: names.split() for group, names in _NAMES.items()}
"""The first group is that of the command itself."""
