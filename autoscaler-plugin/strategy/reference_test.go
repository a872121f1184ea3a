package strategy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/settings"
	"remuda/autoscaler-plugin/sources"
	"remuda/internal/testkit/reference"
)

// read is what a strategy reads of its settings.
type read struct {
	Options Options
	Target  observe.Target
}

// alone are settings that are read only where another one has some value.
var alone = map[string][2]string{
	"headroom": {"form", "replicate"}, "hysteresis": {"form", "replicate"}, "slow_start": {"form", "replicate"},
	"min_override": {"form", "replicate"}, "emergency_cap": {"form", "replicate"},
	"target_wait": {"optimizer", "true"}, "target_probability": {"optimizer", "true"},
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
func known(t *testing.T, ask func(*settings.Reader), values map[string]string) []string {
	t.Helper()
	values["zz"] = "1"
	r := settings.Read(values)
	ask(r)
	m := regexp.MustCompile(`zz is unknown:.*?((?:[a-z_]+, )*[a-z_]+)$`).FindStringSubmatch(r.Err().Error())
	if m == nil {
		t.Fatalf("the error for an unknown setting lists those that are known in another form than expected: %v", r.Err())
	}
	return strings.Split(m[1], ", ")
}

func TestReferenceConfiguration(t *testing.T) {
	parse := func(strategy string) func(map[string]string) (read, error) {
		return func(values map[string]string) (read, error) {
			with := unquoted(values)
			for name, needs := range alone {
				if _, set := values[name]; set && strategy != Predictive {
					with[needs[0]] = needs[1]
				}
			}
			r := settings.Read(with)
			o, target := readOptions(r, strategy)
			if strategy == HPA && with["form"] == "replicate" && values["form"] == "" {
				// What only this form has stands beside what the other one has.
				o.HPA.Behavior = read{}.Options.hpaBehavior()
			}
			return read{o, target}, r.Err()
		}
	}
	names := map[string][]string{}
	count := map[string]int{}
	for _, s := range Names() {
		found := map[string]bool{}
		for _, values := range []map[string]string{{"model": "m"}, {"model": "m", "form": "replicate"}, {"model": "m", "optimizer": "true"}} {
			for _, name := range known(t, func(r *settings.Reader) { readOptions(r, s) }, values) {
				found[name] = true
			}
		}
		names[s] = slices.Sorted(maps.Keys(found))
		for name := range found {
			count[name]++
		}
	}
	var common []string
	for name, n := range count {
		if n == len(Names()) {
			common = append(common, name)
		}
	}
	slices.Sort(common)
	var b strings.Builder
	b.WriteString("## Strategies for nomad-autoscaler\n\nThe settings of a check's block `strategy`. The block `config` of the strategy's plugin may give defaults for them.\n\n")
	_ = fmt.Sprint(sources.Keys(), parse)
	reference.Section(t, "configuration.md", "autoscaler strategies", b.String())
}
