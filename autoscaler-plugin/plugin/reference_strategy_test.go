package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"remuda/autoscaler-plugin/hpa"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/predictive"
	"remuda/autoscaler-plugin/utilization"
	"remuda/internal/testkit/reference"
)

// read is what a strategy reads of its settings.
type read struct {
	Options Options
	Target  observe.Target
}

// variation are settings that a strategy reads only where another one has some value.
type variation struct {
	strategy, needs, value string
	names                  []string
}

var variations = []variation{
	{HPA, "form", "replicate", []string{"headroom", "hysteresis", "slow_start", "min_override", "emergency_cap"}},
}

// unquoted are the values as nomad-autoscaler hands them over.
func unquoted(values map[string]string) map[string]string {
	out := map[string]string{"model": "m"}
	for name, v := range values {
		if s, err := strconv.Unquote(v); err == nil {
			v = s
		}
		out[name] = v
	}
	return out
}

// known are the settings that a reader has asked for.
func known(t *testing.T, ask func(*Settings), values map[string]string) []string {
	t.Helper()
	values["zz"] = "1"
	r := ReadSettings(values)
	ask(r)
	return reference.Listed(t, r.Err())
}

func TestReferenceStrategies(t *testing.T) {
	ways := []map[string]string{{"model": "m"}}
	for _, v := range variations {
		ways = append(ways, map[string]string{"model": "m", v.needs: v.value})
	}
	names := map[string][]string{}
	count := map[string]int{}
	for _, s := range StrategyNames() {
		found := map[string]bool{}
		for _, values := range ways {
			for _, name := range known(t, func(r *Settings) { readOptions(r, s) }, maps.Clone(values)) {
				found[name] = true
			}
		}
		for name := range found {
			count[name]++
		}
		for _, v := range variations {
			if v.strategy != s {
				continue
			}
			for _, name := range v.names {
				delete(found, name)
			}
		}
		for _, v := range variations {
			if v.strategy != s {
				delete(found, v.needs) // it was only tried
			}
		}
		names[s] = slices.Sorted(maps.Keys(found))
	}
	common := slices.DeleteFunc(slices.Clone(names[Capacity]), func(name string) bool { return count[name] < len(StrategyNames()) })
	keys := func(strategy string, names []string, given map[string]string) string {
		return reference.Keys[read]{
			Names: names, Given: given,
			Parse: func(values map[string]string) (read, error) {
				r := ReadSettings(unquoted(values))
				o, target := readOptions(r, strategy)
				return read{o, target}, r.Err()
			},
			Examples: examples[strategy], Docs: docs, Derived: map[string]string{"model": "required", "form": "`kubernetes`", "value": "`peak`"},
		}.Table(t)
	}
	var b strings.Builder
	b.WriteString("## Strategies for nomad-autoscaler\n\nThe settings of a check's block `strategy`. The block `config` of the strategy's plugin may give defaults for all of them.\n\n" +
		"### All strategies\n\n" + keys(Capacity, common, nil))
	for _, s := range StrategyNames() {
		own := slices.DeleteFunc(names[s], func(name string) bool { return slices.Contains(common, name) })
		fmt.Fprintf(&b, "\n### %s\n\n%s", s, keys(s, own, nil))
		for _, v := range variations {
			if v.strategy == s {
				fmt.Fprintf(&b, "\nWith `%s = %q`:\n\n%s", v.needs, v.value, keys(s, v.names, map[string]string{v.needs: v.value}))
			}
		}
		switch s {
		case HPA:
			b.WriteString("\nThe JSON of `behavior`:\n\n" + reference.JSON(t, hpa.DefaultBehavior(), true))
		case Utilization:
			b.WriteString("\nThe JSON of `config`:\n\n" + reference.JSON(t, utilization.DefaultConfig(), true))
		case Predictive:
			b.WriteString("\nThe JSON of `config`:\n\n" + reference.JSON(t, predictive.DefaultConfig(), true))
		}
	}
	var rows [][]string
	for _, c := range reference.Source(t, "autoscaler-plugin/plugin").Constants() {
		if strings.HasPrefix(c.Name, "Strategy") {
			rows = append(rows, []string{reference.Code(c.Value), reference.Reworded(c.Doc, nil)})
		}
	}
	b.WriteString("\n### Plugin blocks of strategies\n\nThe block `config` of a strategy's plugin also takes the settings of where to look, which are above, and these:\n\n" +
		reference.Table([]string{"Setting", "Meaning"}, rows))
	reference.Section(t, "configuration.md", "autoscaler strategies", b.String())
}

// examples are values of settings that take none of the usual ones.
var examples = map[string]map[string]string{
	Capacity: {
		"match": `"job=llama"`, "dialect": `"vllm"`, "rules": `"wva"`,
	},
	HPA:         {"metric": `"running"`, "value": `"now"`, "form": `"replicate"`, "behavior": strconv.Quote(`{"scale_down":{"stabilization_window_seconds":7}}`)},
	Utilization: {"config": strconv.Quote(`{"min_count":1}`)},
	Predictive:  {"config": strconv.Quote(`{"goal":0.9}`)},
}

// docs are of settings that fill in more than one field.
var docs = map[string]string{
	"config":   "Settings of the strategy as one JSON object. What it leaves out keeps its default.",
	"behavior": "The stabilization windows and the policies as one JSON object, as spec.behavior of a HorizontalPodAutoscaler.",
	"form":     "The rules by which the number of replicas is computed: those of Kubernetes' HorizontalPodAutoscaler, or those that follow a backlog.",
}

func TestReferenceMetrics(t *testing.T) {
	var r reference.Recorder
	NewMetrics(&r, Capacity)
	reference.Section(t, "metrics.md", "autoscaler", "## Strategies for nomad-autoscaler\n\nAt the address in the setting `metrics_listen`.\n\n"+reference.Metrics(t, r.Collectors...))
}
