package modelfile_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/modelfile"
	"remuda/controller/placement"
	"remuda/controller/state"
	"remuda/internal/hclfault"
	"remuda/jobs"
)

const job = `variable "tp" { default = "1" }
variable "args" { default = ["a"] }
variable "remuda_replica" { default = "" }

job "m" {
  group "replica" {}
}
`

// files is a directory of job files.
type files map[string]string

func (f files) read(path string) ([]byte, error) {
	if src, ok := f[path]; ok {
		return []byte(src), nil
	}
	return nil, fs.ErrNotExist
}

var disk = files{
	"d/job.hcl":    job,
	"d/sub/j.hcl":  job,
	"/abs/job.hcl": job,
	"d/broken.hcl": "job \"x\" {\n  group \"g\" {\n",
	"d/none.hcl":   "variable \"x\" {}\n",
	"d/two.hcl":    "job \"a\" {}\njob \"b\" {}\n",
	"d/needs.hcl":  "variable \"path\" {}\nvariable \"remuda_model\" {}\njob \"a\" {}\n",
	"d/latin.hcl":  "job \"\xe9\" {}\n",
	"d/large.hcl":  "job \"a\" {}\n#" + strings.Repeat("x", 1<<20),
}

func parse(src string) ([]state.Model, error) {
	return modelfile.Parse("d/m.hcl", []byte(src), disk.read)
}

func parseOne(t *testing.T, src string) state.Model {
	t.Helper()
	models, err := parse(src)
	require.NoError(t, err)
	require.Len(t, models, 1)
	require.Equal(t, src, models[0].Source)
	models[0].Source = "" // so that models can be compared
	return models[0]
}

const full = `
model "meta-llama/Llama-3:8b" {
  min        = 1
  max        = 4
  replicas   = 2
  priority   = 70
  dedicated  = true
  failover   = true
  management = "upscaling"
  keep_warm  = 1

  continuation = true

  pass_authorization = true

  queue {
    length     = 12
    wait       = "90s"
    first_byte = "1h"
  }

  slo {
    ttft_p95 = "2s"
    itl_p95  = "50ms"
  }

  idle {
    warm = "15m"
    cold = "1h30m"
  }

  scaling {
    strategy            = "remuda-hpa"
    evaluation_interval = "20s"
    target              = 4
    scale_to_zero       = true
    behavior            = { scale_down = { stabilization_window_seconds = 60 } }
  }

  variant "h100" {
    gpu {
      model = "NVIDIA H100 80GB HBM3"
      count = 2
      reach = 4
    }
    weights     = "16GiB"
    memory      = "40GiB"
    host_memory = "20GB"
    sleep_memory = "1GiB"
    cost        = 7.25
    slots       = 64
    engine      = "ollama"
    job         = file("job.hcl")
    vars        = { tp = 2, args = ["x", true, { a = 1 }] }
  }

  variant "any" {
    weights = "1GiB"
    job     = "sub/j.hcl"
  }
}
`

func TestParse(t *testing.T) {
	m := parseOne(t, full)
	hash, variants := m.Hash, m.Variants
	require.Len(t, hash, 32)
	require.Len(t, variants, 2)
	require.NotEqual(t, variants[0].Hash, variants[1].Hash)
	m.Hash, variants[0].Hash, variants[1].Hash = "", "", ""
	// ceil(2^30 * 1.15) + 500 MiB.
	const size = 1234803098 + 500<<20
	require.Equal(t, state.Model{
		Name: "meta-llama/Llama-3:8b", Min: 1, Max: 4, Desired: state.Any(2), FileReplicas: m.FileReplicas, Priority: 70, Dedicated: true, Failover: true,
		Management: state.ManagementUpscaling, IdleWarm: 15 * time.Minute, IdleCold: 90 * time.Minute, KeepWarm: 1, Continuation: true, PassAuthorization: true,
		Queue: state.Queue{Length: 12, Wait: 90 * time.Second, FirstByte: time.Hour}, SLO: state.SLO{TTFT: 2 * time.Second, ITL: 50 * time.Millisecond},
		Scaling: &state.Scaling{Strategy: "remuda-hpa", Interval: 20 * time.Second, Settings: map[string]string{
			"target": "4", "scale_to_zero": "true", "behavior": `{"scale_down":{"stabilization_window_seconds":60}}`}},
		Variants: []state.Variant{
			{
				Name: "h100", GPUModel: "NVIDIA H100 80GB HBM3", GPUs: 2, Reach: 4, Weights: 16 << 30, Memory: 40 << 30, HostMemory: 20e9, SleepMemory: 1 << 30, Cost: 7.25, Slots: 64,
				Engine: "ollama", Job: job, Vars: map[string]string{"tp": "2", "args": `["x", true, { a = 1 }]`},
			},
			{Name: "any", GPUs: 1, Weights: 1 << 30, Memory: size, HostMemory: size, Cost: 1, Engine: "vllm", Job: job},
		},
	}, m)
}

func TestDefaults(t *testing.T) {
	for _, tc := range []struct {
		name, fields       string
		min, replicas, max int
	}{
		{"none", "", 0, 1, 1000},
		{"min", "min = 3", 3, 3, 1000},
		{"max", "max = 5", 0, 1, 5},
		{"replicas", "replicas = 4", 0, 4, 1000},
		{"none now", "replicas = 0", 0, 0, 1000},
		{"min and max", "min = 2\nmax = 6", 2, 2, 6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := parseOne(t, "model \"m\" {\n"+tc.fields+"\nvariant \"v\" {\nweights = \"1GiB\"\njob = \"job.hcl\"\n}\n}\n")
			require.Equal(t, []int{tc.min, tc.replicas, tc.max}, []int{m.Min, m.Desired.Total(), m.Max})
			require.Equal(t, 50, m.Priority)
			require.Equal(t, state.ManagementFull, m.Management)
		})
	}
}

func TestSizing(t *testing.T) {
	for _, tc := range []struct {
		gpus   int
		memory int64
	}{
		{1, 100<<30*115/100 + 500<<20},
		{2, 50<<30*115/100 + 250<<20},
		{8, (100<<30*115/100 + 500<<20) / 8},
		{16, (100<<30*115/100 + 500<<20) / 16},
	} {
		m := parseOne(t, fmt.Sprintf("model \"m\" {\nvariant \"v\" {\ngpu {\ncount = %d\n}\nweights = \"100GiB\"\njob = \"job.hcl\"\n}\n}\n", tc.gpus))
		require.InDelta(t, tc.memory, m.Variants[0].Memory, 1)
		require.Equal(t, placement.ReplicaSize(100<<30), m.Variants[0].HostMemory)
		require.GreaterOrEqual(t, m.Variants[0].Memory*int64(tc.gpus), placement.ReplicaSize(100<<30), "no byte is lost in the division")
	}
}

// TestCards: how many GPUs are needed follows from their memory, by NDIF's rule.
func TestCards(t *testing.T) {
	for _, tc := range []struct {
		weights, card string
		gpus          int
	}{
		{"1GiB", "80GiB", 1},
		{"70GiB", "80GiB", 2},  // 81 GiB
		{"140GiB", "80GiB", 4}, // 161.5 GiB: three, rounded up
		{"140GB", "80GB", 4},
		{"600GiB", "80GiB", 16}, // 690.5 GiB: nine, rounded up
	} {
		m := parseOne(t, fmt.Sprintf("model \"m\" {\nvariant \"v\" {\ngpu {\nmemory = %q\nreach = 16\n}\nweights = %q\njob = \"job.hcl\"\n}\n}\n", tc.card, tc.weights))
		v := m.Variants[0]
		require.Equal(t, tc.gpus, v.GPUs, "%s on %s", tc.weights, tc.card)
		size := placement.ReplicaSize(v.Weights)
		require.Equal(t, (size+int64(v.GPUs)-1)/int64(v.GPUs), v.Memory)
		require.Equal(t, float64(v.GPUs), v.Cost)
	}
	m := parseOne(t, "model \"m\" {\nvariant \"v\" {\ngpu {\ncount = 2\nreach = 2\n}\nweights = \"1GiB\"\njob = \"job.hcl\"\n}\n}\n")
	require.Zero(t, m.Variants[0].Reach, "as many as it uses is the default")
	_, err := parse("model \"m\" {\nvariant \"v\" {\ngpu {\nmemory = \"80GiB\"\n}\nmemory = \"1GiB\"\nhost_memory = \"1GiB\"\njob = \"job.hcl\"\n}\n}\n")
	require.EqualError(t, err, `d/m.hcl:4:10: model "m": variant "v": gpu: memory is "80GiB", but weights is missing: set weights, from which the number of GPUs follows, or set count`)
}

func TestNoFilesWithoutReader(t *testing.T) {
	_, err := modelfile.Parse("m.hcl", []byte("model \"m\" {\nvariant \"v\" {\nweights = \"1GiB\"\njob = \"job.hcl\"\n}\n}\n"), nil)
	require.ErrorContains(t, err, "files cannot be read here")
	models, err := modelfile.Parse("m.hcl", []byte("model \"m\" {\nvariant \"v\" {\nweights = \"1GiB\"\njob = <<EOT\njob \"x\" {\n  name = \"$${NOMAD_ALLOC_ID}\"\n}\nEOT\n}\n}\n"), nil)
	require.NoError(t, err)
	require.Equal(t, "job \"x\" {\n  name = \"${NOMAD_ALLOC_ID}\"\n}\n", models[0].Variants[0].Job)
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	write("demo.nomad.hcl", jobs.Demo)
	write("failover.nomad.hcl", strings.ReplaceAll(jobs.Failover, "\n", "\r\n"))
	write("ollama.nomad.hcl", jobs.Ollama)
	path := write("m.hcl", `model "demo" {
  variant "sim" {
    weights = "256MiB"
    job     = "failover.nomad.hcl"
  }
  variant "single" {
    weights = "256MiB"
    job     = "demo.nomad.hcl"
    vars    = { slots = 4 }
  }
  variant "ollama" {
    weights = "256MiB"
    engine  = "ollama"
    job     = "`+dir+`/ollama.nomad.hcl"
  }
}
`)
	source, models, err := modelfile.Load(nil, path)
	require.NoError(t, err)
	require.Equal(t, jobs.Failover, models[0].Variants[0].Job)
	require.Equal(t, jobs.Ollama, models[0].Variants[2].Job)
	again, err := source.Models(nil)
	require.NoError(t, err)
	require.Equal(t, models, again, "the same without the disk")

	_, _, err = modelfile.Load(nil, filepath.Join(dir, "no.hcl"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.False(t, errors.Is(err, modelfile.ErrInvalid))
	_, _, err = modelfile.Load(nil, dir)
	require.ErrorContains(t, err, "has no model files (*.model.hcl)")
	write("one.model.hcl", "model \"a\" {\n  max = -1\n}\n")
	write("two.model.hcl", "model \"b\" {\n  min = -1\n}\n")
	_, _, err = modelfile.Load(nil, dir)
	require.ErrorIs(t, err, modelfile.ErrInvalid)
	for _, want := range []string{"one.model.hcl:2:9: ", "two.model.hcl:2:9: "} {
		require.ErrorContains(t, err, filepath.Join(dir, want))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "three.model.hcl"), 0o700))
	_, _, err = modelfile.Load(nil, dir)
	require.ErrorContains(t, err, "is not a regular file")
}

func TestHash(t *testing.T) {
	base := parseOne(t, full)
	same := func(name, src string) {
		t.Run(name, func(t *testing.T) { require.Equal(t, base, parseOne(t, src)) })
	}
	same("again", full)
	same("comments and spacing", "# a comment\n"+strings.ReplaceAll(full, "  ", "      "))
	same("order of arguments", strings.Replace(strings.Replace(full, "  min        = 1\n", "", 1), "  max        = 4\n", "  max = 4\n  min = 1\n", 1))
	same("order of vars", strings.Replace(full, `{ tp = 2, args = ["x", true, { a = 1 }] }`, "{\n args = [\"x\",true,{a=1}]\n tp = \"2\"\n}", 1))
	same("units", strings.Replace(full, `"40GiB"`, `"40960MiB"`, 1))

	changes := map[string][2]string{
		"name": {"Llama-3:8b", "Llama-3:70b"}, "min": {"min        = 1", "min = 2"}, "max": {"max        = 4", "max = 5"},
		"priority": {"= 70", "= 71"}, "dedicated": {"dedicated  = true", "dedicated = false"}, "failover": {"failover   = true", "failover = false"},
		"management": {`"upscaling"`, `"manual"`}, "warm": {`"15m"`, `"16m"`}, "cold": {`"1h30m"`, `"2h"`},
		"variant": {`"h100"`, `"h200"`}, "gpu": {"H100 80GB", "H200"}, "count": {"count = 2", "count = 4"}, "memory": {`"40GiB"`, `"41GiB"`},
		"host memory": {`"20GB"`, `"21GB"`}, "cost": {"7.25", "7.5"}, "slots": {"64", "65"}, "engine": {`"ollama"`, `"vllm"`},
		"vars": {"tp = 2", "tp = 4"}, "keep warm": {"keep_warm  = 1", "keep_warm = 2"}, "reach": {"reach = 4", "reach = 3"},
		"continuation": {"continuation = true", "continuation = false"}, "replicas": {"replicas   = 2", "replicas = 3"}, "no replicas": {"replicas   = 2", ""},
		"pass_authorization": {"pass_authorization = true", ""}, "length": {"length     = 12", ""}, "wait": {`"90s"`, `"91s"`}, "first_byte": {`first_byte = "1h"`, `first_byte = "2h"`},
		"surge": {"priority   = 70", "priority = 70\n update {\n surge = 0\n}"}, "min_available": {"priority   = 70", "priority = 70\n update {\n min_available = 1\n}"},
		"percentage": {"priority   = 70", "priority = 70\n update {\n min_available = \"1%\"\n}"},
		"strategy":   {`"remuda-hpa"`, `"remuda-capacity"`}, "interval": {`"20s"`, `"30s"`}, "setting": {"target              = 4", "target = 5"}, "no setting": {"target              = 4", ""},
		"weights": {`"16GiB"`, `"17GiB"`}, "sleep memory": {`sleep_memory = "1GiB"`, `sleep_memory = "2GiB"`},
	}
	seen := map[string]string{base.Hash: "base"}
	for name, c := range changes {
		changed := strings.Replace(full, c[0], c[1], 1)
		require.NotEqual(t, full, changed, name)
		m := parseOne(t, changed)
		require.Empty(t, seen[m.Hash], "%s has the hash of another change", name)
		seen[m.Hash] = name
		rolls := m.Variants[0].Hash != base.Variants[0].Hash
		switch name {
		case "name", "failover", "variant", "gpu", "count", "memory", "host memory", "slots", "engine", "vars", "reach", "sleep memory":
			require.True(t, rolls, "%s must replace the replicas", name)
		default:
			require.False(t, rolls, "%s must not replace the replicas", name)
		}
	}

	t.Run("job file", func(t *testing.T) {
		hash := func(job string) string {
			models, err := modelfile.Parse("d/m.hcl", []byte(full), files{"d/job.hcl": job, "d/sub/j.hcl": job}.read)
			require.NoError(t, err)
			require.Equal(t, models[0].Variants[0].Job, strings.TrimRight(job, "\r\n")+"\n")
			return models[0].Variants[0].Hash
		}
		want := hash(job)
		require.Equal(t, want, hash(strings.TrimSuffix(job, "\n")))
		require.Equal(t, want, hash("# head\n\n// more\n"+strings.ReplaceAll(job, "  ", "\t")))
		require.Equal(t, want, hash(strings.Replace(job, "\njob", "\n\n/* here */\n\njob", 1)))
		require.NotEqual(t, want, hash(strings.Replace(job, `"m"`, `"m2"`, 1)))
		require.NotEqual(t, want, hash(strings.Replace(job, `"replica"`, `"rep lica"`, 1)))
	})
}

// TestScaling reads a model's policy.
func TestScaling(t *testing.T) {
	file := func(scaling string) string {
		return "model \"m\" {\nscaling {\n" + scaling + "\n}\nvariant \"v\" {\nweights = \"1GiB\"\njob = \"job.hcl\"\n}\n}\n"
	}
	m := parseOne(t, file("strategy = \"s\"\nb = true\nn = 0.5\nt = \"x\"\no = { a = [1, \"y\"] }"))
	require.Equal(t, &state.Scaling{Strategy: "s", Interval: 10 * time.Second, Settings: map[string]string{"b": "true", "n": "0.5", "t": "x", "o": `{"a":[1,"y"]}`}}, m.Scaling)
	require.Nil(t, parseOne(t, "model \"m\" {\nvariant \"v\" {\nweights = \"1GiB\"\njob = \"job.hcl\"\n}\n}\n").Scaling)

	check := func(strategy string, settings map[string]string) error {
		if strategy == "none" {
			return errors.New("strategy is unknown")
		}
		if settings["other"] != "1" {
			return nil
		}
		return errors.Join(errors.New("hold is bad"), errors.New("other is an unknown key"))
	}
	for _, tc := range []struct {
		scaling string
		want    []string
	}{
		{"", []string{`m.hcl:2:1: model "m": scaling: strategy is missing: set the name of a strategy, such as "remuda-capacity"`}},
		{"strategy = 1", []string{`m.hcl:3:12: model "m": scaling: strategy is 1: must be the name of a strategy`}},
		{"strategy = \"s\"\nevaluation_interval = \"11m\"", []string{`m.hcl:4:23: model "m": scaling: evaluation_interval is "11m": must be a duration from "1s" to "10m", such as "10s"`}},
		{"strategy = \"s\"\nevaluation_interval = \"0s\"", []string{`evaluation_interval is "0s": must be a duration from "1s" to "10m"`}},
		{"strategy = \"s\"\nevaluation_interval = 10", []string{`evaluation_interval is 10: must be`}},
		{"strategy = \"s\"\nhold = null", []string{`m.hcl:4:8: model "m": scaling: hold is null: must be a string, a number, true or false, or an object`}},
		{"strategy = \"s\"\nhold = a", []string{`hold is`}},
		{"strategy = \"s\"\npolicy {\n}", []string{`m.hcl:4:1: `, `policy`}},
		{"strategy = \"none\"", []string{`m.hcl:3:12: model "m": scaling: strategy is unknown`}},
		{"strategy = \"s\"\nhold = \"soon\"\nother = 1", []string{`m.hcl:4:8: model "m": scaling: hold is bad`, `m.hcl:5:9: model "m": scaling: other is an unknown key`}},
	} {
		_, err := modelfile.Source{Files: []modelfile.File{{Name: "m.hcl", Text: file(tc.scaling)}}, Jobs: map[string]string{"job.hcl": job}}.Models(check)
		require.ErrorIs(t, err, modelfile.ErrInvalid, tc.scaling)
		for _, want := range tc.want {
			require.ErrorContains(t, err, want)
		}
	}
}

// TestUpdate reads how a rollout replaces replicas.
func TestUpdate(t *testing.T) {
	file := func(most, update string) string {
		return "model \"m\" {\n" + most + "\nupdate {\n" + update + "\n}\nvariant \"v\" {\nweights = \"1GiB\"\njob = \"job.hcl\"\n}\n}\n"
	}
	for _, tc := range []struct {
		update string
		// surge, and how many of 5 and of 1 keep serving
		want [3]int
	}{
		{"", [3]int{1, 5, 1}},
		{"surge = 1", [3]int{1, 5, 1}},
		{"surge = 3", [3]int{3, 5, 1}},
		{"surge = 0", [3]int{0, 4, 0}},
		{"surge = 0\nmin_available = 3", [3]int{0, 3, 3}},
		{`min_available = "50%"`, [3]int{1, 3, 1}},
		{`min_available = "0%"`, [3]int{1, 0, 0}},
		{`min_available = "100%"`, [3]int{1, 5, 1}},
	} {
		m := parseOne(t, file("", tc.update))
		require.Equal(t, tc.want, [3]int{m.Surge(), m.MinAvailable(5), m.MinAvailable(1)}, tc.update)
	}
	require.Equal(t, parseOne(t, file("", "")).Hash, parseOne(t, file("", "surge = 1")).Hash, "the default, spelled out")
	for _, tc := range []struct{ max, update, want string }{
		{"", "surge = -1", `d/m.hcl:4:9: model "m": update: surge is -1: must be a whole number from 0 to 1000`},
		{"", "surge = 1001", `surge is 1001: must be`},
		{"", "surge = 1e400", `surge is 1e+400: must be`},
		{"", `surge = "1"`, `surge is "1": must be`},
		{"", "min_available = -1", `min_available is -1: must be a whole number from 0 to 1000, or a percentage from "0%" to "100%"`},
		{"", "min_available = 0.5", `min_available is 0.5: must be`},
		{"", "min_available = null", `min_available is null: must be`},
		{"", "min_available = [1]", `min_available is a list: must be`},
		{"", `min_available = "2"`, `min_available is "2": must be`},
		{"", `min_available = "101%"`, `min_available is "101%": must be`},
		{"", `min_available = "-1%"`, `min_available is "-1%": must be`},
		{"", `min_available = "1.5%"`, `min_available is "1.5%": must be`},
		{"", `min_available = "%"`, `min_available is "%": must be`},
		{"", `min_available = "99999999999999999999%"`, `must be a whole number`},
		{"max = 2", "min_available = 3", `min_available is 3: must be at most max (2)`},
		{"max = 2", "surge = 0\nmin_available = 2", `min_available is 2 and surge is 0: a rollout could replace none of max (2) replicas`},
		{"", "surge = 0\nmin_available = \"100%\"", `min_available is 100% and surge is 0`},
		{"", "surges = 0", `surges`},
		{"", "surge = 1\n}\nupdate {\n", `update`},
	} {
		_, err := parse(file(tc.max, tc.update))
		require.ErrorIs(t, err, modelfile.ErrInvalid, tc.update)
		require.ErrorContains(t, err, tc.want)
	}
	_, err := parse(file("max = -1", "surge = -1\nmin_available = \"x\""))
	for _, want := range []string{":2:", ":4:", ":5:"} {
		require.ErrorContains(t, err, want, "all at once")
	}
	old, now := parseOne(t, file("", "")), parseOne(t, file("", "surge = 0"))
	require.Equal(t, []modelfile.Change{{Path: "update: surge", Old: "1", New: "0"}, {Path: "update: min_available", Old: "all", New: "all but one"}}, modelfile.Diff(&old, &now))
}

func TestDiff(t *testing.T) {
	text := func(old, new *state.Model) string {
		var lines []string
		for _, c := range modelfile.Diff(old, new) {
			lines = append(lines, c.String())
		}
		return strings.Join(lines, "\n")
	}
	base := parseOne(t, full)
	require.Empty(t, modelfile.Diff(&base, &base))
	require.Empty(t, modelfile.Diff(nil, nil))

	edit := func(pairs ...string) *state.Model {
		m := parseOne(t, strings.NewReplacer(pairs...).Replace(full))
		return &m
	}
	require.Equal(t, `~ min: 1 -> 0
~ replicas: 2 -> 3
~ keep_warm: 1 -> 0
~ continuation: true -> false
~ pass_authorization: true -> false
- queue: length = 12
~ queue: wait: 1m30s -> 2m
- slo: ttft_p95 = 2s
~ slo: itl_p95: 50ms -> 60ms
~ idle: warm: 15m -> never
+ scaling: headroom = "1"
- scaling: scale_to_zero = "true"
~ scaling: target: "4" -> "5"
~ variant "h100": gpu: reach: 4 -> 2  (replaces the variant's replicas)
~ variant "h100": weights: 16GiB -> unknown
~ variant "h100": memory: 40GiB -> 41GiB
~ variant "h100": sleep_memory: 1GiB -> nothing
~ variant "h100": cost: 7.25 -> 8
~ variant "h100": vars: tp: "2" -> "4"`,
		text(&base, edit("min        = 1", "min = 0", "replicas   = 2", "replicas = 3", `"15m"`, `"0s"`, "target              = 4", "target = 5\nheadroom = 1", "scale_to_zero       = true", "", `"40GiB"`, `"41GiB"`, "7.25", "8", "tp = 2", "tp = 4",
			"keep_warm  = 1", "", "continuation = true", "", "pass_authorization = true", "", "length     = 12", "", `"90s"`, `"2m"`, `ttft_p95 = "2s"`, "", `"50ms"`, `"60ms"`, "reach = 4", "", `weights     = "16GiB"`, "", `sleep_memory = "1GiB"`, "")))
	require.Equal(t, `~ variant "h100": weights: 16GiB -> 17GiB`, text(&base, edit(`"16GiB"`, `"17GiB"`)), "it replaces nothing")
	require.Equal(t, `~ failover: true -> false
~ variant "h100"  (replaces the variant's replicas)
~ variant "any"  (replaces the variant's replicas)`, text(&base, edit("failover   = true", "failover = false")))
	require.Equal(t, `+ variant "b200" = 2 x NVIDIA H100 80GB HBM3, 40 GiB of each, cost 7.25, ollama
- variant "h100" = 2 x NVIDIA H100 80GB HBM3, 40 GiB of each, cost 7.25, ollama`, text(&base, edit(`"h100"`, `"b200"`)))

	swapped := base
	swapped.Variants = []state.Variant{base.Variants[1], base.Variants[0]}
	require.Equal(t, `~ order of variants: h100, any -> any, h100`, text(&base, &swapped))

	changed := base
	changed.Variants = append([]state.Variant(nil), base.Variants...)
	changed.Variants[0].Job = strings.Replace(job, "group \"replica\" {}", "group \"replica\" {\n    count = 1\n  }", 1)
	require.Equal(t, `~ variant "h100": job:  (replaces the variant's replicas)
      … 4 lines
      job "m" {
    -   group "replica" {}
    +   group "replica" {
    +     count = 1
    +   }
      }`, strings.Replace(text(&base, &changed), "      … 3 lines\n      \n", "      … 4 lines\n", 1))
	changed.Variants[0].Job = "# only a comment\n" + job
	require.NotContains(t, text(&base, &changed), "replaces")
	many := base
	many.Variants = append([]state.Variant(nil), base.Variants...)
	many.Variants[0].Job, changed.Variants[0].Job = strings.Repeat("# one\n", 5000), strings.Repeat("# two\n", 5000)
	require.Equal(t, `~ variant "h100": job:
    - 5000 lines
    + 5000 lines, too many to compare`, text(&many, &changed))

	require.Contains(t, text(nil, &base), `+ model = "meta-llama/Llama-3:8b"
+ min = 1`)
	require.Contains(t, text(&base, nil), "- min = 1")
}

func FuzzParse(f *testing.F) {
	f.Add(full)
	for _, tc := range faults {
		f.Add(fault{tc.model, tc.idle, tc.gpu, tc.variant}.source())
	}
	f.Add("model \"m\" {\nvariant \"v\" {\nweights = \"1GiB\"\njob = <<EOT\njob \"a\" {}\n\rJOB\n$${x} %%{y} $$$${z}\nEOT\nvars = {}\n}\n}\n")
	f.Fuzz(func(t *testing.T, src string) {
		models, err := parse(src)
		if err != nil {
			var all hclfault.Faults
			if !errors.As(err, &all) || len(all) == 0 || models != nil {
				t.Fatalf("%v is no list of faults, or came with models", err)
			}
			for _, one := range all {
				if one.Line < 1 || one.Column < 1 || one.File == "" || one.Text == "" {
					t.Fatalf("a fault says not where or what: %+v", one)
				}
			}
			return
		}
		text := ""
		for _, m := range models {
			text += m.Source
			alone, err := parse(m.Source)
			if err != nil || len(alone) != 1 {
				t.Fatalf("the source of model %q cannot be read alone: %v\n%s", m.Name, err, m.Source)
			}
			if c := modelfile.Diff(&m, &alone[0]); len(c) > 0 || m.Hash != alone[0].Hash {
				t.Fatalf("the source of model %q is of another model: %v\n%s", m.Name, c, m.Source)
			}
		}
		if text != src {
			t.Fatalf("the sources are not the whole file: %q", text)
		}
	})
}

// TestOtherFilesAreNamed: people apply the file beside the model file.
func TestOtherFilesAreNamed(t *testing.T) {
	for src, want := range map[string]string{
		"job \"engine\" {\n  group \"replica\" {}\n}\n":        `no model: this is a Nomad job file: name it in a variant of a model file (job = file("…"))`,
		`variable "x" {}` + "\n" + `job "engine" {}`:           "this is a Nomad job file",
		"pipeline \"p\" {\n  deadline = \"60s\"\n}\n":          `no model: this is a pipeline file: apply it with "remuda pipeline apply"`,
		`job "engine" {}` + "\n" + `model "m" { min = "one" }`: "one",
	} {
		_, err := modelfile.Parse("m.hcl", []byte(src), nil)
		require.ErrorContains(t, err, want)
	}
}
