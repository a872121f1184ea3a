package enginemetrics

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/common/model"
)

// Matcher is one label that series must have.
type Matcher struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Selector chooses the series of one model on a Prometheus server.
type Selector struct {
	// Model is the model's name as the series have it. Required where the dialect
	// has a model label or ModelLabel is set.
	Model string `json:"model"`
	// ModelLabel replaces the dialect's model label, for servers that relabel, for
	// example to model_id.
	ModelLabel string `json:"model_label,omitempty"`
	// Match are further labels, such as namespace or job.
	Match []Matcher `json:"match,omitempty"`
	// Window is over how long the peaks are taken; 0 means one minute.
	Window time.Duration `json:"window_ns,omitempty"`
}

// Queries are the questions to a Prometheus server about one model, each for
// /api/v1/query. KVUsage and Waiting are the peaks over the
// window. A query is empty where the dialect has no such metric.
type Queries struct {
	KVUsage string `json:"kv_usage,omitempty"`
	Waiting string `json:"waiting,omitempty"`
	Running string `json:"running,omitempty"`
	// Seen gives the time, in Unix seconds, of each replica's last sample. A replica
	// whose scrape fails drops out of it at once, while it stays in the peaks until
	// the window has passed: this is how dead replicas are told.
	Seen string `json:"seen,omitempty"`
	// Models counts the series of each model among those that match everything
	// but the model. Ask it when the others are empty: it tells a label mismatch
	// from an engine that is not there.
	Models string `json:"models,omitempty"`
}

// Queries writes the queries of a dialect. Where a metric has an old and a new
// name, the old one counts only for replicas that do not show the new one, rank
// by rank. vLLM's swapped requests, which only its old engine had, are not asked
// for.
func (d *Dialect) Queries(sel Selector) (Queries, error) {
	modelLabel := sel.ModelLabel
	if modelLabel == "" {
		modelLabel = d.ModelLabel
	}
	window := sel.Window
	if window == 0 {
		window = DefaultWindow
	}
	if err := sel.validate(modelLabel, window); err != nil {
		return Queries{}, fmt.Errorf("queries of dialect %q: %w", d.Name, err)
	}
	others := braces(sel.Match)
	all := slices.Clone(sel.Match)
	if modelLabel != "" {
		all = append(all, Matcher{modelLabel, sel.Model})
	}
	series := braces(all)
	peak := func(n string) string {
		return "max_over_time(" + n + series + "[" + model.Duration(window).String() + "])"
	}
	q := Queries{KVUsage: either(d.Metrics[KVUsage], peak), Waiting: either(d.Metrics[Waiting], peak), Running: either(d.Metrics[Running], peak)}
	// Prefer what always is there.
	base := d.Metrics[Waiting]
	for _, k := range []Quantity{Running, KVUsage} {
		if len(base) == 0 {
			base = d.Metrics[k]
		}
	}
	q.Seen = either(base, func(n string) string { return "timestamp(" + n + series + ")" })
	if modelLabel != "" {
		q.Models = either(base, func(n string) string { return "count by (" + modelLabel + ") (" + n + others + ")" })
	}
	return q, nil
}

func (s *Selector) validate(modelLabel string, window time.Duration) error {
	var errs []error
	if modelLabel != "" && s.Model == "" {
		errs = append(errs, fmt.Errorf("model is empty: must be the value of label %s", modelLabel))
	}
	if modelLabel == "" && s.Model != "" && len(s.Match) == 0 {
		errs = append(errs, fmt.Errorf("model is %q and series of this dialect have no model label: set match or model_label", s.Model))
	}
	if window < time.Millisecond || window%time.Millisecond != 0 {
		errs = append(errs, fmt.Errorf("window is %v: must be whole milliseconds, 1 or more", window))
	}
	if !utf8.ValidString(s.Model) {
		errs = append(errs, fmt.Errorf("model is %q: must be valid UTF-8", s.Model))
	}
	used := map[string]bool{"__name__": true, modelLabel: true}
	if modelLabel != "" && !model.LegacyValidation.IsValidLabelName(modelLabel) {
		errs = append(errs, fmt.Errorf("model label is %q: must be letters, digits and _", modelLabel))
	}
	for i, m := range s.Match {
		switch {
		case !model.LegacyValidation.IsValidLabelName(m.Name):
			errs = append(errs, fmt.Errorf("match[%d] is %q: must be a label name of letters, digits and _", i, m.Name))
		case used[m.Name]:
			errs = append(errs, fmt.Errorf("match[%d] is a duplicate of label %s", i, m.Name))
		case !utf8.ValidString(m.Value):
			errs = append(errs, fmt.Errorf("match[%d]: value %q of label %s must be valid UTF-8", i, m.Value, m.Name))
		}
		used[m.Name] = true
	}
	return errors.Join(errs...)
}

// either joins one expression for each name; earlier names win.
func either(names []string, expression func(string) string) string {
	var parts []string
	for _, n := range names {
		parts = append(parts, expression(n))
	}
	return strings.Join(parts, " or ")
}

// braces writes label matchers. A PromQL string follows Go's rules of escaping.
func braces(match []Matcher) string {
	if len(match) == 0 {
		return ""
	}
	parts := make([]string, 0, len(match))
	for _, m := range match {
		parts = append(parts, m.Name+"="+strconv.Quote(m.Value))
	}
	return "{" + strings.Join(parts, ",") + "}"
}
