package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// TestPlanDoesNothing: it tells what would happen, and why, and that is all.
func TestPlanDoesNothing(t *testing.T) {
	w := newWorld(t)
	r := w.dev()
	r.gateway()
	r.eventually("the node", func() bool { return strings.Contains(r.ok("node", "list"), "gpu-1") })
	path := writeModel(t, "m", "  max = 3\n  replicas = 1\n"+variant("h100", "20GiB"))

	out := r.ok("plan", path)
	require.Regexp(t, `^1 replica would change, in 2 steps within about \S+s:\n\nAt once:\n\n  m:h100:`, out)
	require.Contains(t, out, "    new: starting, on gpu-1")
	require.Regexp(t, `In about \S+s:\n\n  m:h100:\S+\n    starting -> serving, on gpu-1\n`, out)
	require.Regexp(t, `Assumed:\n  The traffic stays as it is\.\n  Nothing fails\.\n  A cold start of m:h100 takes `, out)
	require.Contains(t, out, "Plan only: nothing was changed.\n")
	require.Contains(t, r.ok("model", "list"), "No models.")
	for _, line := range strings.Split(out, "\n") {
		require.LessOrEqual(t, len([]rune(line)), width, line)
	}

	r.ok("model", "apply", path)
	require.Equal(t, "Nothing would change.\n\nPlan only: nothing was changed.\n", r.ok("plan"))
	out = r.ok("plan", "-scale", "m=3")
	require.Contains(t, out, "2 replicas would change, in 4 steps")
	var p api.PlanResponse
	r.json(&p, "plan", "-scale", "m=3")
	require.Len(t, p.Steps, 4)
	require.NotEmpty(t, p.Steps[0].Reason)
	require.Positive(t, p.Steps[3].After)
	require.NotEmpty(t, p.Assumptions)
	require.NotEmpty(t, p.Decisions)
	out = r.ok("plan", "-evict", "m", "-to", "warm")
	require.Contains(t, out, "At once:\n\n  m:h100:")
	require.Contains(t, out, "serving -> sleeping, on gpu-1\n    as requested; drained: going to sleep.\n")
	require.Contains(t, out, "sleeping -> warm, on gpu-1\n")
	big := writeModel(t, "big", "  max = 1\n  replicas = 1\n"+variant("h100", "500GiB"))
	out = r.ok("plan", big)
	require.Contains(t, out, "Would still wait:\n\n  big\n")
	require.Regexp(t, `(?m)^m +running +1 +1 `, r.ok("model", "list"))

	for args, want := range map[string]string{
		"-scale m":              `"m": must be MODEL=REPLICAS`,
		"-scale m=x":            `number is "x"`,
		"-scale m=1 -scale m=2": `duplicate model "m"`,
		"-to warm":              "-to and -force need -evict",
		"-evict m -to tepid":    `-to is "tepid": must be warm or cold`,
	} {
		got := r.do(append([]string{"plan"}, strings.Fields(args)...)...)
		require.Equal(t, 2, got.code, args)
		require.Contains(t, got.errout, want, args)
	}
	got := r.do("plan", "-scale", "m=9")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "0 to 3")
}

// TestPlanShowsWhatStandbysCost: of a pair and of the replica that the model keeps WARM.
func TestPlanShowsWhatStandbysCost(t *testing.T) {
	w := newWorld(t)
	r := w.dev()
	r.eventually("the node", func() bool { return strings.Contains(r.ok("node", "list"), "gpu-1") })
	file := strings.Replace(variant("h100", "20GiB"), `cost        = 2.5`, "sleep_memory = \"1GiB\"\n    cost        = 2.5", 1)
	path := writeModel(t, "p", "  max = 3\n  replicas = 1\n  failover = true\n  keep_warm = 1\n"+file)

	var out, flat string
	r.eventually("a plan by a leader that has seen Nomad and Consul", func() bool {
		out = r.ok("plan", path)
		flat = strings.Join(strings.Fields(out), " ")
		return strings.Contains(flat, " WARM, on gpu-1")
	})
	require.Contains(t, flat, "Standbys, and what each costs:")
	require.Regexp(t, `p:h100:\S+ second engine, on gpu-1: 1 seat, 512 MiB of its GPU; takes over in about 300ms, by the configured rates \(a cold start: 49s\)\.`, flat)
	require.Regexp(t, `p:h100:\S+ WARM, on gpu-1: 2 seats, 1 GiB of its GPU, 1 GiB of host memory; wakes in about 1.6s, by the configured rates \(a cold start: 49s\)\.`, flat)
	require.Contains(t, flat, "A second engine with -standby cold keeps no GPU memory")
	for _, line := range strings.Split(out, "\n") {
		require.LessOrEqual(t, len([]rune(line)), width, line)
	}
	var p api.PlanResponse
	r.json(&p, "plan", path)
	require.Len(t, p.Standbys, 2)
	require.ElementsMatch(t, []string{"pair", "warm"}, []string{p.Standbys[0].Kind, p.Standbys[1].Kind})

	require.NotContains(t, r.ok("plan", writeModel(t, "s", "  max = 3\n  replicas = 1\n"+file)), "Standbys", "a single engine has none")
}

const calendarFile = `timezone = "UTC"

default {
  dedicated = { "m" = 2 }
}
`

// TestDedicated goes through the verbs of the dedicated set.
func TestDedicated(t *testing.T) {
	w := newWorld(t)
	r := w.dev()
	r.gateway()
	r.ok("model", "apply", writeModel(t, "m", "  max = 3\n  replicas = 1\n"+variant("h100", "20GiB")))
	require.Contains(t, r.ok("dedicated", "status"), "The set has no models.")
	out := r.ok("dedicated", "set", "m=1")
	require.Regexp(t, `(?m)^Set by = operator, at `, out)
	require.Regexp(t, `(?m)^m +1$`, out)
	require.Contains(t, r.ok("model", "status", "m"), "yes, by the dedicated set")
	got := r.do("evict", "m")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, "dedicated")
	for args, want := range map[string]string{
		"":        "MODEL=REPLICAS",
		"m":       `"m": must be MODEL=REPLICAS, such as llama-3-8b=2`,
		"m=0":     "must be at least 1",
		"m=-1":    `number is "-1"`,
		"m=1 m=2": "duplicate model",
	} {
		got := r.do(append([]string{"dedicated", "set"}, strings.Fields(args)...)...)
		require.Equal(t, 2, got.code, args)
		require.Contains(t, got.errout, want, args)
	}
	got = r.do("dedicated", "set", "m=1", "n=1")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `model "n" does not exist`)
	require.Contains(t, r.ok("dedicated", "clear"), "The set has no models.")

	require.Contains(t, r.ok("dedicated", "schedule"), "No schedule.")
	path := filepath.Join(t.TempDir(), "calendar.hcl")
	require.NoError(t, os.WriteFile(path, []byte(calendarFile), 0o600))
	out = r.ok("dedicated", "schedule", path)
	require.Regexp(t, `(?m)^Window now = default$`, out)
	require.Regexp(t, `(?m)^Until +(=) no change within 400 days$`, out)
	require.Equal(t, calendarFile, r.ok("dedicated", "schedule"))
	r.eventually("the calendar's set", func() bool {
		var d api.Dedicated
		r.json(&d, "dedicated", "status")
		return d.Source == "schedule:default" && d.Models["m"] == 2
	})
	require.NoError(t, os.WriteFile(path, []byte("timezone = \"UTC\"\ndefault {\n  dedicated = { x = 1, y = -1 }\n}\n"), 0o600))
	got = r.do("dedicated", "schedule", path)
	require.Equal(t, 1, got.code)
	require.Regexp(t, regexp.QuoteMeta(path)+`:3:28: default: dedicated: model "y" is -1`, got.errout)
	require.NoError(t, os.WriteFile(path, []byte("timezone = \"UTC\"\ndefault {\n  dedicated = { x = 1 }\n}\n"), 0o600))
	got = r.do("dedicated", "schedule", path)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, path+`:3:17: default: dedicated: model "x" does not exist`)

	var stdout, errs bytes.Buffer
	p := &program{ctx: t.Context(), stdin: strings.NewReader(calendarFile), stdout: &stdout, stderr: &errs}
	require.Equal(t, 0, p.run([]string{"dedicated", "schedule", "-", "-address", r.url}), errs.String())
	got = r.do("dedicated", "schedule", "-delete", path)
	require.Equal(t, 2, got.code)
	require.Equal(t, "Deleted the schedule. The dedicated set is unchanged.\n", r.ok("dedicated", "schedule", "-delete"))
}

// TestPoolList: without any pool block there is the own one.
func TestPoolList(t *testing.T) {
	w := newWorld(t)
	r := w.dev()
	r.eventually("the node", func() bool { return strings.Contains(r.ok("node", "list"), "gpu-1") })
	r.eventually("the pool", func() bool {
		return regexp.MustCompile(`(?m)^own +full +1 +reachable +1 +2 +\S+ GiB of \S+ GiB +0 +0 +-$`).MatchString(r.ok("pool", "list", "-verbose"))
	})
	var pools []api.Pool
	r.json(&pools, "pool", "list")
	require.Len(t, pools, 1)
	r.ok("model", "apply", writeModel(t, "m", "  max = 3\n  replicas = 0\n"+variant("h100", "20GiB")))
	got := r.do("scale", "m", "1", "-pool", "cloud")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.errout, `pool "cloud" does not exist`)
	got = r.do("scale", "m/h100", "1", "-pool", "cloud")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.errout, `-pool is "cloud", but m/h100 names a variant`)
}

func TestPoolTable(t *testing.T) {
	var b bytes.Buffer
	c := &apiClient{out: &b, verbose: true}
	require.NoError(t, c.showPools([]api.Pool{
		{Management: "full", Price: 1, Known: true},
		{Name: "cloud", Management: "manual", Price: 2.5, Error: "connection refused", Desired: map[string]int{"m": 2, "a": 1}},
	}))
	require.Regexp(t, `(?m)^cloud +manual +2.5 +unreachable +0 +0 +0 B of 0 B +0 +0 +a 1, m 2$`, b.String())
	require.Contains(t, b.String(), "\nPool cloud: connection refused\n")
}
