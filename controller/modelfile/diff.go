package modelfile

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"remuda/controller/state"
	"remuda/internal/bytesize"
)

// formatFloat writes a number as HCL reads it, without an exponent.
func formatFloat(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// Change is one difference between two models.
type Change struct {
	// Path is where, as `variant "h100": memory`.
	Path string
	// Old and New are the values as the file would have them. Old is empty where
	// something is new, New where it is gone.
	Old, New string
	// Lines are the changed lines of a text, each with "+ ", "- " or "  " before
	// it, in place of Old and New.
	Lines []string
	// Rolls tells that the variant's running replicas are replaced because of it.
	Rolls bool
}

// String is one line, and those of the text.
func (c Change) String() string {
	var s string
	switch {
	case c.Lines != nil:
		s = "~ " + c.Path + ":"
	case c.Old == "" && c.New == "":
		s = "~ " + c.Path
	case c.Old == "":
		s = "+ " + c.Path + " = " + c.New
	case c.New == "":
		s = "- " + c.Path + " = " + c.Old
	default:
		s = "~ " + c.Path + ": " + c.Old + " -> " + c.New
	}
	if c.Rolls {
		s += "  (replaces the variant's replicas)"
	}
	return strings.Join(append([]string{s}, c.Lines...), "\n    ")
}

// Diff tells what becomes of a model, in the order of the file. A nil old is a model
// that is new, a nil new one that goes. The sum of Desired is among it, though it is not a
// part of the hash. Equal models have no changes.
func Diff(old, new *state.Model) []Change {
	switch {
	case old == nil && new == nil:
		return nil
	case old == nil:
		old = &state.Model{}
	case new == nil:
		new = &state.Model{}
	}
	var out []Change
	add := func(path, was, is string) {
		if was != is {
			out = append(out, Change{Path: path, Old: was, New: is})
		}
	}
	isNew, isGone := old.Name == "", new.Name == ""
	add("model", quoteName(old.Name), quoteName(new.Name))
	field := func(path string, was, is string) {
		if isNew {
			was = ""
		}
		if isGone {
			is = ""
		}
		add(path, was, is)
	}
	field("min", strconv.Itoa(old.Min), strconv.Itoa(new.Min))
	field("max", strconv.Itoa(old.Max), strconv.Itoa(new.Max))
	field("replicas", strconv.Itoa(old.Desired.Total()), strconv.Itoa(new.Desired.Total()))
	field("priority", strconv.Itoa(old.Priority), strconv.Itoa(new.Priority))
	field("dedicated", strconv.FormatBool(old.Dedicated), strconv.FormatBool(new.Dedicated))
	field("failover", strconv.FormatBool(old.Failover), strconv.FormatBool(new.Failover))
	field("management", string(old.Management), string(new.Management))
	field("keep_warm", strconv.Itoa(old.KeepWarm), strconv.Itoa(new.KeepWarm))
	if old.Continuation || new.Continuation {
		field("continuation", strconv.FormatBool(old.Continuation), strconv.FormatBool(new.Continuation))
	}
	if old.PassAuthorization || new.PassAuthorization {
		field("pass_authorization", strconv.FormatBool(old.PassAuthorization), strconv.FormatBool(new.PassAuthorization))
	}
	add("queue: length", setNumber(old.Queue.Length), setNumber(new.Queue.Length))
	add("queue: wait", setDuration(old.Queue.Wait), setDuration(new.Queue.Wait))
	add("queue: first_byte", setDuration(old.Queue.FirstByte), setDuration(new.Queue.FirstByte))
	add("slo: ttft_p95", setDuration(old.SLO.TTFT), setDuration(new.SLO.TTFT))
	add("slo: itl_p95", setDuration(old.SLO.ITL), setDuration(new.SLO.ITL))
	if old.Update != nil || new.Update != nil {
		field("update: surge", strconv.Itoa(old.Surge()), strconv.Itoa(new.Surge()))
		field("update: min_available", minAvailable(old), minAvailable(new))
	}
	field("idle: warm", idle(old.IdleWarm), idle(new.IdleWarm))
	field("idle: cold", idle(old.IdleCold), idle(new.IdleCold))

	before, after := scalingText(old.Scaling), scalingText(new.Scaling)
	for _, k := range slices.Sorted(maps.Keys(merged(before, after))) {
		add("scaling: "+k, before[k], after[k])
	}

	was := map[string]state.Variant{}
	for _, v := range old.Variants {
		was[v.Name] = v
	}
	var kept, order []string
	for _, v := range new.Variants {
		if _, both := was[v.Name]; both {
			order = append(order, v.Name)
		}
	}
	is := map[string]bool{}
	for _, v := range new.Variants {
		is[v.Name] = true
	}
	for _, v := range old.Variants {
		if is[v.Name] {
			kept = append(kept, v.Name)
		}
	}
	if !slices.Equal(kept, order) {
		out = append(out, Change{Path: "order of variants", Old: strings.Join(kept, ", "), New: strings.Join(order, ", ")})
	}
	for _, v := range new.Variants {
		path := "variant " + Quote(v.Name)
		before, both := was[v.Name]
		if !both {
			out = append(out, Change{Path: path, New: summary(v)})
			continue
		}
		changes := variantChanges(path+": ", before, v)
		if variantHash(old, &before) != variantHash(new, &v) {
			if len(changes) == 0 { // the model's own change, as failover
				changes = []Change{{Path: path}}
			}
			changes[0].Rolls = true
		}
		out = append(out, changes...)
	}
	for _, v := range old.Variants {
		if !is[v.Name] {
			out = append(out, Change{Path: "variant " + Quote(v.Name), Old: summary(v)})
		}
	}
	return out
}

func variantChanges(path string, old, new state.Variant) []Change {
	var out []Change
	add := func(name, was, is string) {
		if was != is {
			out = append(out, Change{Path: path + name, Old: was, New: is})
		}
	}
	add("gpu: model", gpuModel(old.GPUModel), gpuModel(new.GPUModel))
	add("gpu: count", strconv.Itoa(old.GPUs), strconv.Itoa(new.GPUs))
	add("gpu: reach", reach(old), reach(new))
	add("weights", sizeIf(old.Weights, "unknown"), sizeIf(new.Weights, "unknown"))
	add("memory", bytesize.Format(old.Memory), bytesize.Format(new.Memory))
	add("host_memory", bytesize.Format(old.HostMemory), bytesize.Format(new.HostMemory))
	add("sleep_memory", sizeIf(old.SleepMemory, "nothing"), sizeIf(new.SleepMemory, "nothing"))
	add("shared_memory", sizeIf(old.SharedMemory, "nothing"), sizeIf(new.SharedMemory, "nothing"))
	add("cost", formatFloat(old.Cost), formatFloat(new.Cost))
	add("slots", strconv.Itoa(old.Slots), strconv.Itoa(new.Slots))
	add("engine", old.Engine, new.Engine)
	for _, k := range slices.Sorted(maps.Keys(merged(old.Vars, new.Vars))) {
		add("vars: "+k, quoteVar(old.Vars, k), quoteVar(new.Vars, k))
	}
	if old.Job != new.Job {
		out = append(out, Change{Path: path + "job", Lines: lineDiff(old.Job, new.Job)})
	}
	return out
}

// scalingText is a policy as the file would have it, by the names of its attributes.
func scalingText(s *state.Scaling) map[string]string {
	if s == nil {
		return nil
	}
	out := map[string]string{"strategy": Quote(s.Strategy), "evaluation_interval": formatDuration(s.Interval)}
	for k, v := range s.Settings {
		out[k] = Quote(v)
	}
	return out
}

// merged has the keys of both maps.
func merged(a, b map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

func quoteName(s string) string {
	if s == "" {
		return ""
	}
	return Quote(s)
}

func quoteVar(vars map[string]string, k string) string {
	v, ok := vars[k]
	if !ok {
		return ""
	}
	return Quote(v)
}

func gpuModel(s string) string {
	if s == "" {
		return "any"
	}
	return Quote(s)
}

// reach is on how many GPUs an engine has a seat.
func reach(v state.Variant) string { return strconv.Itoa(max(v.Reach, v.GPUs)) }

// sizeIf writes a size, or another word for 0.
func sizeIf(n int64, zero string) string {
	if n == 0 {
		return zero
	}
	return bytesize.Format(n)
}

// minAvailable is how many replicas a rollout leaves serving.
func minAvailable(m *state.Model) string {
	switch {
	case m.Update != nil && m.Update.MinAvailable != nil:
		return m.Update.MinAvailable.String()
	case m.Surge() == 0:
		return "all but one"
	}
	return "all"
}

// setNumber writes a number that is set, and nothing for one that is not.
func setNumber(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// setDuration is setNumber for a duration.
func setDuration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return formatDuration(d)
}

func idle(d time.Duration) string {
	if d == 0 {
		return "never"
	}
	return formatDuration(d)
}

// summary is a variant in a few words.
func summary(v state.Variant) string {
	gpu := "any GPU"
	if v.GPUModel != "" {
		gpu = v.GPUModel
	}
	return fmt.Sprintf("%d x %s, %s of each, cost %s, %s", v.GPUs, gpu, bytesize.Text(v.Memory), formatFloat(v.Cost), v.Engine)
}
