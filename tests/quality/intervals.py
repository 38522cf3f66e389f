# SPDX-License-Identifier: Apache-2.0
"""Writes tests/quality/intervals.json: what scipy and statsmodels say of the statistics that
vitrine/statistics.h has, for intervals_test.cc. Run it in an environment with both:

    python3 tests/quality/intervals.py > tests/quality/intervals.json
"""

import json
import math
import random
import sys

import numpy
import statsmodels.api
from scipy import optimize, special, stats
from statsmodels.stats import contingency_tables, multitest, proportion


def tango_upper(lost, gained, total, confidence):
    """Tango (1998), equation 3, with the restricted estimate found by maximizing the likelihood."""

    def likelihood(gains, drop):
        losses = gains + drop
        rest = 1 - gains - losses
        return -(special.xlogy(lost, losses) + special.xlogy(gained, gains) +
                 special.xlogy(total - lost - gained, rest))

    def score(drop):
        lowest, highest = max(0.0, -drop), (1 - drop) / 2
        found = optimize.minimize_scalar(likelihood, args=(drop,), method="bounded",
                                         bounds=(lowest, highest), options={"xatol": 1e-14})
        # The bounded method stays clear of the ends.
        gains = min([lowest, found.x, highest], key=lambda g: likelihood(g, drop))
        variance = total * (2 * gains + drop * (1 - drop))
        return (lost - gained - total * drop) / math.sqrt(variance)

    z = stats.norm.ppf(confidence)
    start = (lost - gained) / total
    return optimize.brentq(lambda drop: score(drop) + z, start + 1e-9, 1 - 1e-9, xtol=1e-13)


def paired_cases():
    cases = []
    for lost, gained, total in ((0, 0, 300), (1, 0, 474), (3, 0, 80), (5, 5, 500), (12, 4, 300),
                                (4, 12, 300), (40, 31, 1240), (1, 1, 20), (60, 20, 100),
                                (200, 150, 9000)):
        upper = tango_upper(lost, gained, total, 0.95)
        if gained == 0:
            upper = max(upper, stats.binomtest(lost, total).proportion_ci(0.9, "exact").high)
        table = [[total - lost - gained, lost], [gained, 0]]
        cases.append({
            "lost": lost, "gained": gained, "total": total, "upper": upper,
            "worse": stats.binomtest(lost, lost + gained, 0.5, "greater").pvalue
            if lost + gained else 1.0,
            "two_sided": contingency_tables.mcnemar(table, exact=True).pvalue})
    return cases


def binomial_cases():
    cases = []
    for right, total in ((0, 10), (1, 10), (10, 10), (3, 299), (150, 300), (7, 7000)):
        low, high = proportion.proportion_confint(right, total, alpha=0.05, method="beta")
        cases.append({"right": right, "total": total, "lower": low, "upper": high,
                      "at_least": float(stats.binom.sf(right - 1, total, 0.25))})
    return cases


def mean_cases():
    cases = []
    for seed, sizes in ((1, [1] * 7), (2, [3, 1, 4, 2, 5]), (3, [20, 30]), (4, [2] * 40)):
        random.seed(seed)
        values, clusters = [], []
        for cluster, size in enumerate(sizes):
            shift = random.gauss(0.1, 1)
            for _ in range(size):
                values.append(round(shift + random.gauss(0, 1), 6))
                clusters.append(cluster)
        fit = statsmodels.api.OLS(values, numpy.ones(len(values))).fit()
        # Without the factor (n - 1) / (n - 1) of one regressor, that is clusters / (clusters - 1).
        robust = fit.get_robustcov_results("cluster", groups=numpy.array(clusters), use_t=True)
        low, high = robust.conf_int(alpha=0.1)[0]
        t = (robust.params[0] - 0.2) / robust.bse[0]
        cases.append({"values": values, "clusters": clusters, "lower": low, "upper": high,
                      "p_above": float(stats.t.sf(t, len(sizes) - 1))})
    return cases


def quantile_cases():
    cases = []
    for seed, count, fraction in ((1, 30, 0.5), (2, 7, 0.5), (3, 4, 0.5), (4, 80, 0.9), (5, 70, 0.1)):
        random.seed(seed)
        values = [round(random.expovariate(1), 3) for _ in range(count)]
        above = stats.quantile_test(values, q=1.0, p=fraction, alternative="greater")
        below = stats.quantile_test(values, q=1.0, p=fraction, alternative="less")
        bounds = (above.confidence_interval(0.95).low, below.confidence_interval(0.95).high)
        lower, upper = (float(bound) if math.isfinite(bound) else None for bound in bounds)
        cases.append({"values": values, "fraction": fraction, "lower": lower, "upper": upper,
                      "p_above": above.pvalue})
    return cases


def main():
    p_values = [0.01, 0.04, 0.03, 0.005, 0.5, 0.04]
    random.seed(9)
    probabilities = [round(random.random(), 4) for _ in range(60)] + [0.0, 1.0, 0.5]
    right = [int(random.random() < p) for p in probabilities]
    edges = numpy.digitize(probabilities, numpy.linspace(0, 1, 11)[1:-1], right=True)
    error = sum(abs(sum(probabilities[i] - right[i] for i in range(63) if edges[i] == bin))
                for bin in range(10)) / 63
    json.dump({
        "paired": paired_cases(), "binomial": binomial_cases(), "means": mean_cases(),
        "quantiles": quantile_cases(),
        "student": [[p, df, float(stats.t.ppf(p, df))]
                    for p in (0.95, 0.975, 0.2, 0.9999) for df in (1, 2, 7, 300)],
        "normal": [[p, float(stats.norm.ppf(p))] for p in (1e-12, 0.05, 0.5, 0.8, 0.975)],
        "holm": {"p": p_values,
                 "adjusted": multitest.multipletests(p_values, method="holm")[1].tolist()},
        "calibration": {"probabilities": probabilities, "right": right, "error": error,
                        "brier": float(numpy.mean((numpy.array(probabilities) - right) ** 2))},
    }, sys.stdout, indent=None, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
