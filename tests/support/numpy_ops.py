"""Every op once more, in NumPy and float64, token by token and by other means than the references.

`OPS` has the names and signatures of `arcforge_core.ops.specs.SPECS`; nothing here calls torch or arcforge.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
MASK = 2**64 - 1


def softmax(x: Array) -> Array:
    """Returns the weights of one row."""
    return np.exp(x - np.logaddexp.reduce(x))


def sigmoid(x: Array) -> Array:
    """Returns 1 / (1 + exp(-x)) without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


# ---- attention -------------------------------------------------------------------------------------------------------


def key_rows(cu_query: Array, cu_key: Array, pages: Any = None, window: int = 0, indices: Any = None) -> list[Any]:
    """Returns, for each query, (rows of its keys, their indices in the segment), key by key."""
    found, query = [], 0
    for n in range(len(cu_query) - 1):
        queries, keys = cu_query[n + 1] - cu_query[n], cu_key[n + 1] - cu_key[n]
        for j in range(queries):
            seen = [
                s for s in range(keys) if s <= keys - queries + j and (not window or s > keys - queries + j - window)
            ]
            if indices is not None:
                seen = [int(s) for s in indices[query] if s >= 0]
            rows = [cu_key[n] + s for s in seen]
            if pages is not None:
                rows = [int(pages.table_NP[n, s // pages.size]) * pages.size + s % pages.size for s in seen]
            found.append((rows, seen))
            query += 1
    return found


def attend(q: Array, k: Array, v: Array, rows: list[Any], scale: float) -> Array:
    """Attends to the given rows, one query and head at a time."""
    shared = q.shape[1] // k.shape[1]
    out = np.empty((*q.shape[:2], v.shape[2]))
    for t, (keys, _) in enumerate(rows):
        for h in range(q.shape[1]):
            p = softmax(np.array([scale * (q[t, h] * k[s, h // shared]).sum() for s in keys]))
            out[t, h] = sum(p_s * v[s, h // shared] for p_s, s in zip(p, keys, strict=True))
    return out


def attention_varlen(q_THK, k_SGK, v_SGV, cu_query, cu_key, scale, pages=None):
    return attend(q_THK, k_SGK, v_SGV, key_rows(cu_query, cu_key, pages), scale)


def window_attention(q_THK, k_SGK, v_SGV, cu_query, cu_key, window, scale):
    return attend(q_THK, k_SGK, v_SGV, key_rows(cu_query, cu_key, window=window), scale)


def mla_decode(q_THC, kv_SC, cu_query, cu_key, latent_dim, scale, pages=None):
    entries = kv_SC[:, None]
    return attend(q_THC, entries, entries[..., :latent_dim], key_rows(cu_query, cu_key, pages), scale)


def sparse_mla(q_THC, kv_SC, indices_TK, cu_query, cu_key, latent_dim, scale, pages=None):
    entries = kv_SC[:, None]
    rows = key_rows(cu_query, cu_key, pages, indices=indices_TK)
    return attend(q_THC, entries, entries[..., :latent_dim], rows, scale)


def selected_attention(q_THK, k_SGK, v_SGV, indices_TK, cu_query, cu_key, scale):
    return attend(q_THK, k_SGK, v_SGV, key_rows(cu_query, cu_key, indices=indices_TK), scale)


def index_score(q_ID: Array, k_D: Array, w_I: Array, use_relu: bool) -> float:
    """Returns the index score of one key."""
    dots = [float(np.dot(q_D, k_D)) for q_D in q_ID]
    return float(sum(w * (max(dot, 0.0) if use_relu else dot) for w, dot in zip(w_I, dots, strict=True)))


def indexer_topk(q_TID, k_SD, w_TI, cu_query, cu_key, topk, use_relu=True, pages=None):
    if k_SD.dtype == np.int8:
        scale = np.ascontiguousarray(k_SD[:, -4:]).view(np.float32)
        k_SD = k_SD[:, :-4] * scale.astype(np.float64)
    out = np.full((len(q_TID), topk), -1)
    for t, (rows, seen) in enumerate(key_rows(cu_query, cu_key, pages)):
        scores = {s: index_score(q_TID[t], k_SD[row], w_TI[t], use_relu) for row, s in zip(rows, seen, strict=True)}
        best = sorted(sorted(seen, key=lambda s: (-scores[s], s))[:topk])
        out[t, : len(best)] = best
    return out


def indexer_kl(q_THC, kv_SC, q_TID, k_SD, w_TI, indices_TK, cu_query, cu_key, scale, use_relu=True):
    out = []
    for t, (rows, _) in enumerate(key_rows(cu_query, cu_key, indices=indices_TK)):
        target = np.mean([softmax(scale * np.array([np.dot(q, kv_SC[s]) for s in rows])) for q in q_THC[t]], axis=0)
        drawn = softmax(np.array([index_score(q_TID[t], k_SD[s], w_TI[t], use_relu) for s in rows]))
        out.append(sum(p * np.log(p / q) for p, q in zip(target, drawn, strict=True) if p > 0))
    return np.array(sum(out))


def gated_delta_rule(q_THK, k_THK, v_THV, g_TH, beta_TH, state_NHKV, cu_query, scale):
    out, states = np.empty_like(v_THV), state_NHKV.copy()
    for n in range(len(cu_query) - 1):
        for t in range(cu_query[n], cu_query[n + 1]):
            for h in range(q_THK.shape[1]):
                k, beta = k_THK[t, h], beta_TH[t, h]
                move = np.exp(g_TH[t, h]) * (np.eye(len(k)) - beta * np.outer(k, k))  # the paper's transition matrix
                states[n, h] = move @ states[n, h] + beta * np.outer(k, v_THV[t, h])
                out[t, h] = scale * states[n, h].T @ q_THK[t, h]
    return out, states


# ---- layers ----------------------------------------------------------------------------------------------------------


def linear(x, weight_NK, bias_N=None):
    out = np.tensordot(x, weight_NK, (-1, 1))
    return out if bias_N is None else out + bias_N


def head_linear(x_THK, weight_HNK):
    return np.stack([x_THK[:, h] @ weight_HNK[h].T for h in range(len(weight_HNK))], axis=1)


def rms_norm(x, weight, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def rope(x_THR, cos_TF, sin_TF):
    turned = (x_THR[..., 0::2] + 1j * x_THR[..., 1::2]) * (cos_TF + 1j * sin_TF)[:, None]
    return np.stack((turned.real, turned.imag), axis=-1).reshape(x_THR.shape)


def swiglu(gate, up):
    return gate * sigmoid(gate) * up


def mlp(x_TD, gate_FD, up_FD, down_DF):
    return swiglu(x_TD @ gate_FD.T, x_TD @ up_FD.T) @ down_DF.T


def router_scores(x_TD, weight_ED):
    return sigmoid(x_TD @ weight_ED.T)


def each_choice(x_TD: Array, expert_TK: Array, gate_TK: Array, run: Any) -> Array:
    """Sums the chosen experts' outputs token by token."""
    out = np.zeros_like(x_TD)
    for t, (experts, gates) in enumerate(zip(expert_TK, gate_TK, strict=True)):
        for expert, gate in zip(experts, gates, strict=True):
            out[t] += gate * run(x_TD[t : t + 1], expert)[0]
    return out


def moe_experts(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK):
    half = gate_up_EFD.shape[1] // 2

    def run(x, e):
        return mlp(x, gate_up_EFD[e, :half], gate_up_EFD[e, half:], down_EDF[e])

    return each_choice(x_TD, expert_TK, gate_TK, run)


def route(x_TD: Array, router_ED: Array, bias_E: Array, chosen: int, scale: float) -> tuple[Array, Array]:
    """Returns experts and gates, by sorting each token's experts."""
    score_TE = router_scores(x_TD, router_ED)
    order = [sorted(range(len(bias_E)), key=lambda e: (-(s_E[e] + bias_E[e]), e))[:chosen] for s_E in score_TE]
    gates = [scale * s_E[o] / (s_E[o].sum() + 1e-20) for s_E, o in zip(score_TE, order, strict=True)]
    return np.array(order), np.array(gates)


def moe(x_TD, router_ED, bias_E, gate_up_EFD, down_EDF, shared_gate_FD, shared_up_FD, shared_down_DF, chosen, scale):
    expert_TK, gate_TK = route(x_TD, router_ED, bias_E, chosen, scale)
    routed_TD = moe_experts(x_TD, gate_up_EFD, down_EDF, expert_TK, gate_TK)
    return routed_TD + mlp(x_TD, shared_gate_FD, shared_up_FD, shared_down_DF)


def mla_prolog(x_TD, q_a_QD, q_norm_Q, kv_a_CD, kv_norm_L, cos_TF, sin_TF, eps):
    latent, entry_TC = len(kv_norm_L), x_TD @ kv_a_CD.T
    turned_TR = rope(entry_TC[:, None, latent:], cos_TF, sin_TF)[:, 0]
    normed_TL = rms_norm(entry_TC[:, :latent], kv_norm_L, eps)
    return rms_norm(x_TD @ q_a_QD.T, q_norm_Q, eps), np.concatenate((normed_TL, turned_TR), axis=1)


def mla_project(x_TD, q_a_QD, q_norm_Q, q_b_JQ, kv_a_CD, kv_norm_L, kv_b_XL, cos_TF, sin_TF, eps, heads):
    q_TQ, entry_TC = mla_prolog(x_TD, q_a_QD, q_norm_Q, kv_a_CD, kv_norm_L, cos_TF, sin_TF, eps)
    return q_TQ, mla_absorb(q_TQ @ q_b_JQ.T, kv_b_XL, cos_TF, sin_TF, heads), entry_TC


def mla_absorb(q_TJ, kv_b_JL, cos_TF, sin_TF, heads):
    rotary, (tokens, rows) = 2 * cos_TF.shape[1], q_TJ.shape
    width, both = rows // heads, len(kv_b_JL) // heads
    nope, outs = width - rotary, []
    for h in range(heads):
        q_TK, up_NL = q_TJ[:, h * width : (h + 1) * width], kv_b_JL[h * both : h * both + nope]
        turned_TR = rope(q_TK[:, None, nope:], cos_TF, sin_TF)[:, 0]
        outs.append(np.concatenate((q_TK[:, :nope] @ up_NL, turned_TR), axis=1))
    return np.stack(outs, axis=1).reshape(tokens, heads, -1)


def mla_epilog(out_THL, kv_b_JL, value):
    both = len(kv_b_JL) // out_THL.shape[1]
    outs = [out_THL[:, h] @ kv_b_JL[(h + 1) * both - value : (h + 1) * both].T for h in range(out_THL.shape[1])]
    return np.concatenate(outs, axis=1)


def mla_layer(
    x_TD, q_a_QD, q_norm_Q, q_b_JQ, kv_a_CD, kv_norm_L, kv_b_XL, o_DY, cos_TF, sin_TF, cache_RC, slot_T, cu_query,
    cu_key, pages, eps, heads, scale,
):  # fmt: skip
    _, q_THC, entry_TC = mla_project(
        x_TD, q_a_QD, q_norm_Q, q_b_JQ, kv_a_CD, kv_norm_L, kv_b_XL, cos_TF, sin_TF, eps, heads
    )
    stored = dict(zip(slot_T.tolist(), entry_TC, strict=True))
    written_RC = np.stack([stored.get(row, old_C) for row, old_C in enumerate(cache_RC)])
    out_THL = mla_decode(q_THC, written_RC, cu_query, cu_key, len(kv_norm_L), scale, pages)
    return mla_epilog(out_THL, kv_b_XL, o_DY.shape[1] // heads) @ o_DY.T


def index_prolog(x_TD, q_TJ, wk_KD, norm_K, norm_bias_K, weights_ID, cos_TF, sin_TF, eps):
    heads, width, rotary = len(weights_ID), len(wk_KD), 2 * cos_TF.shape[1]
    q_TIK, key_TK = q_TJ.reshape(len(q_TJ), heads, width).copy(), x_TD @ wk_KD.T
    key_TK = (key_TK - key_TK.mean(1, keepdims=True)) / np.sqrt(key_TK.var(1, keepdims=True) + eps)
    key_TK = key_TK * norm_K + norm_bias_K
    q_TIK[..., :rotary] = rope(q_TIK[..., :rotary], cos_TF, sin_TF)
    key_TK[:, :rotary] = rope(key_TK[:, None, :rotary], cos_TF, sin_TF)[:, 0]
    return q_TIK, key_TK, x_TD @ weights_ID.T / np.sqrt(heads) / np.sqrt(width)


def newton_schulz(x_BMN, coefficients, eps=1e-7):
    outs = []
    for x_MN in x_BMN:  # an odd polynomial of a matrix is that of its singular values
        u, s, vt = np.linalg.svd(x_MN, full_matrices=False)
        s = s / max(np.sqrt((s**2).sum()), eps)
        for a, b, c in coefficients:
            s = a * s + b * s**3 + c * s**5
        outs.append((u * s) @ vt)
    return np.stack(outs)


def hadamard(x):
    size = x.shape[-1]
    core = next(m for m in (1, 12, 20) if size % m == 0 and not (size // m) & (size // m - 1))
    rows = np.ones((1, 1))
    if core > 1:
        p = core - 1
        rows = np.eye(core)
        for i in range(1, core):
            rows[0, i], rows[i, 0] = 1.0, -1.0
            for j in range(1, core):
                power = pow((i - j) % p, (p - 1) // 2, p)  # Euler's criterion
                rows[i, j] += -1.0 if power == p - 1 else float(power)
    while len(rows) < size:
        rows = np.block([[rows, rows], [rows, -rows]])
    return x @ rows / np.sqrt(size)


# ---- integers --------------------------------------------------------------------------------------------------------


def rounded(x_K: Array) -> tuple[Array, float]:
    """Returns a row as int8 and its scale."""
    scale = max(float(np.abs(x_K).max()) / 127, 2.0**-126)
    return np.rint(x_K / scale), scale


def to_records(x):
    flat = []
    for x_K in x.reshape(-1, x.shape[-1]):
        values, scale = rounded(x_K)
        flat.append(np.concatenate((values.astype(np.int8), np.array([scale], np.float32).view(np.int8))))
    return np.stack(flat).reshape(*x.shape[:-1], -1)


def dequantised(weight: Array, scale_NG: Array) -> Array:
    """Returns the values of int8, or of int4 whose even columns are the low halves of bytes."""
    if weight.dtype == np.uint8:
        halves = np.stack((weight % 16, weight // 16), axis=-1).reshape(*weight.shape[:-1], -1).astype(np.int64)
        weight = np.where(halves > 7, halves - 16, halves)
    return weight * np.repeat(scale_NG, weight.shape[-1] // scale_NG.shape[-1], axis=-1)


def quant_linear(x, weight, scale_NG, bias_N=None, rounds=True):
    if rounds:
        pairs = [rounded(x_K) for x_K in x.reshape(-1, x.shape[-1])]
        x = np.stack([values * scale for values, scale in pairs]).reshape(x.shape)
    return linear(x, dequantised(weight, scale_NG), bias_N)


def quant_mlp(x_TD, gate, gate_scale_FG, up, up_scale_FG, down, down_scale_DG, rounds=True):
    inner = swiglu(
        quant_linear(x_TD, gate, gate_scale_FG, None, rounds), quant_linear(x_TD, up, up_scale_FG, None, rounds)
    )
    return quant_linear(inner, down, down_scale_DG, None, rounds)


def quant_experts(x_TD, gate_up, gate_up_scale_EFG, down, down_scale_EDG, expert_TK, gate_TK, rounds=True):
    half = gate_up.shape[1] // 2

    def run(x, e):
        gate, up = (gate_up[e, part] for part in (slice(half), slice(half, None)))
        scales = (gate_up_scale_EFG[e, part] for part in (slice(half), slice(half, None)))
        return quant_mlp(x, gate, next(scales), up, next(scales), down[e], down_scale_EDG[e], rounds)

    return each_choice(x_TD, expert_TK, gate_TK, run)


def quant_moe(
    x_TD, router_ED, bias_E, gate_up, gate_up_scale_EFG, down, down_scale_EDG, shared_gate, shared_gate_scale_FG,
    shared_up, shared_up_scale_FG, shared_down, shared_down_scale_DG, chosen, scale, rounds=True,
):  # fmt: skip
    expert_TK, gate_TK = route(x_TD, router_ED, bias_E, chosen, scale)
    routed_TD = quant_experts(x_TD, gate_up, gate_up_scale_EFG, down, down_scale_EDG, expert_TK, gate_TK, rounds)
    shared = (shared_gate, shared_gate_scale_FG, shared_up, shared_up_scale_FG, shared_down, shared_down_scale_DG)
    return routed_TD + quant_mlp(x_TD, *shared, rounds)


# ---- loss and sampling -----------------------------------------------------------------------------------------------


def linear_cross_entropy(x_TD, weight_WD, target_T, weight_T):
    rows = zip(x_TD @ weight_WD.T, target_T, weight_T, strict=True)
    return np.array(sum(weight * (np.logaddexp.reduce(row) - row[target]) for row, target, weight in rows))


def argmax_logprob(logits_NV):
    best = np.array([row.tolist().index(max(row)) for row in logits_NV])
    return best, np.array([np.logaddexp.reduce(row) - max(row) for row in logits_NV])


def philox(key: int, counter: list[int]) -> list[int]:
    """Philox-4x64 with ten rounds (Salmon et al. 2011), in Python's integers."""
    first, second = key & MASK, key >> 64
    a, b, c, d = counter
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (right >> 64) ^ b ^ first, right & MASK, (left >> 64) ^ d ^ second, left & MASK
        first, second = (first + 0x9E3779B97F4A7C15) & MASK, (second + 0xBB67AE8584CAA73B) & MASK
    return [a, b, c, d]


def sample(logits_NV, temperature_N, seed_N, place_N):
    drawn = []
    for row, temperature, seed, place in zip(logits_NV, temperature_N, seed_N, place_N, strict=True):
        bits: list[int] = []
        while len(bits) < len(row):
            bits += philox(int(seed), [len(bits) // 4 + 1, int(place), 0, 0])
        noise = np.array([max(-np.log(((b >> 11) + 1) * 2.0**-53), 1e-300) for b in bits[: len(row)]])
        with np.errstate(divide="ignore"):  # Gumbel-max is the same race in logarithms
            race = (row - max(row)) / temperature - np.log(noise)
        drawn.append(int(np.argmax(race)))
    return np.array(drawn)


OPS = {
    fn.__name__: fn
    for fn in (
        rms_norm, rope, linear, head_linear, swiglu, attention_varlen, window_attention, mla_decode, indexer_topk,
        sparse_mla, selected_attention, indexer_kl, gated_delta_rule, router_scores, moe_experts, linear_cross_entropy,
        argmax_logprob, sample, newton_schulz, hadamard, to_records, quant_linear, quant_experts, mla_prolog,
        mla_project, mla_absorb, mla_epilog, mla_layer, index_prolog, mlp, quant_mlp, moe, quant_moe,
    )
} | {"attention_decode": attention_varlen}  # fmt: skip
