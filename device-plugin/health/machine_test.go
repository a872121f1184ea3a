package health_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/device-plugin/health"
)

const gpu = "GPU-1"

func machine(t testing.TB, change func(*health.Config)) *health.Machine {
	t.Helper()
	cfg := health.DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	m, err := health.New(cfg)
	require.NoError(t, err)
	return m
}

func n(v uint64) *uint64      { return &v }
func s(v string) *string      { return &v }
func sec(n int) time.Duration { return time.Duration(n) * time.Second }

// step is one thing that happens to the GPU.
type step struct {
	// after is the time since the step before.
	after time.Duration
	// times repeats a reading, 5 s apart; 0 is once.
	times int
	xid   uint64
	// reading is observed unless xid is set or reloaded is.
	reading  health.Reading
	reloaded bool
	clear    bool
	crash    string
	// want is part of the reason afterwards; empty: the GPU is healthy.
	want string
}

func TestMachine(t *testing.T) {
	good := health.Reading{}
	lost := health.Reading{Lost: true}
	unread := health.Reading{Err: "ERROR_UNKNOWN"}
	ecc := func(v uint64) health.Reading { return health.Reading{Uncorrected: n(v)} }
	asks := func(v string) health.Reading { return health.Reading{Recovery: s(v)} }
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"a healthy GPU", []step{{reading: good}, {times: 5, reading: good}}},
		{"XIDs of programs say nothing against the GPU", []step{
			{xid: 13}, {xid: 31}, {xid: 43}, {xid: 45}, {xid: 68}, {xid: 13}, {xid: 13}, {reading: good}}},
		{"one contained error is a warning", []step{{xid: 94}, {after: sec(601), xid: 63}, {reading: good}}},
		{"a storm of warnings pauses", []step{
			{xid: 94}, {after: sec(60), xid: 63}, {after: sec(60), xid: 94, want: "3 times within 10m0s"},
			{after: sec(5), reading: good, want: "XID 94"},
			{after: sec(60), times: 2, reading: good, want: "XID 94"}, {after: sec(5), reading: good}}},
		{"fallen off the bus, then reset", []step{
			{xid: 79, want: "XID 79: the GPU has fallen off the bus; it needs a reset"},
			{after: sec(5), times: 4, reading: lost, want: "XID 79"},
			{after: sec(5), times: 2, reading: good, want: "XID 79"},
			{after: sec(5), reading: good}}},
		{"a GPU that comes back in fits and starts", []step{
			{reading: lost, want: "lost"}, {times: 2, reading: good, want: "lost"}, {reading: lost, want: "lost"},
			{times: 2, reading: good, want: "lost"}, {reading: good}}},
		{"time alone proves no reset", []step{
			{xid: 95, want: "XID 95"}, {after: 24 * time.Hour, times: 100, reading: ecc(0), want: "XID 95"}}},
		{"counters set back prove a reset", []step{
			{reading: ecc(4)}, {xid: 48, want: "XID 48"}, {after: sec(5), times: 9, reading: ecc(4), want: "XID 48"},
			{after: sec(5), times: 2, reading: ecc(0), want: "XID 48"}, {after: sec(5), reading: ecc(0)}}},
		{"the driver's word proves a reset", []step{
			{xid: 119, want: "XID 119"}, {times: 3, reading: asks("reset the GPU"), want: "XID 119"},
			{times: 2, reading: asks(""), want: "XID 119"}, {reading: asks("")}}},
		{"a driver that needs nothing done, after a while", []step{
			{xid: 109, want: "XID 109"}, {after: sec(5), times: 11, reading: asks(""), want: "XID 109"},
			{after: sec(5), times: 2, reading: asks(""), want: "XID 109"}, {after: sec(5), reading: asks("")}}},
		{"a driver that asks later than the XID came", []step{
			{xid: 119, want: "XID 119"}, {after: sec(5), times: 5, reading: asks(""), want: "XID 119"},
			{after: sec(5), times: 100, reading: asks("reset the GPU"), want: "XID 119"},
			{after: sec(5), times: 2, reading: asks(""), want: "XID 119"}, {after: sec(5), reading: asks("")}}},
		{"a driver that is silent proves nothing", []step{
			{xid: 119, want: "XID 119"}, {after: sec(5), times: 100, reading: good, want: "XID 119"}}},
		{"a new driver proves a reset", []step{
			{xid: 62, want: "XID 62"}, {times: 5, reading: good, want: "XID 62"}, {reloaded: true, want: "XID 62"},
			{times: 2, reading: good, want: "XID 62"}, {reading: good}}},
		{"a reset does not excuse a later fault", []step{
			{xid: 79, want: "XID 79"}, {reading: lost, want: "XID 79"}, {reading: good, want: "XID 79"},
			{xid: 48, want: "XID 48"}, {times: 20, reading: good, want: "XID 48"}}},
		{"the driver asks for a reset without an XID", []step{
			{reading: asks("reset the GPU"), want: "the driver asks to reset the GPU"},
			{times: 20, reading: asks("reset the GPU"), want: "the driver asks"},
			{times: 2, reading: asks(""), want: "the driver asks"}, {reading: asks("")}}},
		{"a driver that falls silent takes nothing back", []step{
			{reading: asks("reset the GPU"), want: "the driver asks"}, {times: 20, reading: good, want: "the driver asks"},
			{reading: lost, want: "lost"}, {times: 2, reading: good, want: "lost"}, {reading: good}}},
		{"a driver that asked and was replaced by one that cannot", []step{
			{reading: asks("reset the GPU"), want: "the driver asks"}, {reloaded: true, want: "the driver asks"},
			{times: 2, reading: good, want: "the driver asks"}, {reading: good}}},
		{"a link error pauses for a minute", []step{
			{xid: 74, want: "XID 74: an NVLink error"},
			{after: sec(30), times: 3, reading: good, want: "XID 74"},
			{after: sec(30), times: 2, reading: good, want: "XID 74"}, {reading: good}}},
		{"a relapse pauses longer", []step{
			{xid: 74, want: "XID 74"}, {after: sec(60), times: 2, reading: good, want: "XID 74"}, {reading: good},
			{xid: 74, want: "XID 74"}, {after: sec(60), times: 6, reading: good, want: "XID 74"},
			{after: sec(60), times: 2, reading: good, want: "XID 74"}, {reading: good},
			{after: 2 * time.Hour, xid: 74, want: "XID 74"}, {after: sec(60), times: 2, reading: good, want: "XID 74"}, {reading: good}}},
		{"an error during the pause begins it anew, and the first one is the cause", []step{
			{xid: 74, want: "XID 74"}, {after: sec(50), xid: 149, want: "XID 74"},
			{after: sec(50), times: 2, reading: good, want: "XID 74"},
			{after: sec(10), times: 2, reading: good, want: "XID 74"}, {reading: good}}},
		{"the first XID is the cause of those that follow", []step{
			{xid: 79, want: "XID 79"}, {xid: 95, want: "XID 79"}, {reading: lost, want: "XID 79"}, {xid: 140, want: "XID 79"}}},
		{"a GPU that hangs after an XID", []step{
			{xid: 119, want: "XID 119"}, {reading: health.Reading{Err: "NVML hangs in f", Certain: true}, want: "a reset (nvidia-smi -r, or a reboot); the GPU cannot be read: NVML hangs in f"},
			{times: 3, reading: good, want: "XID 119"}}},
		{"a hang is certain", []step{
			{reading: good}, {reading: health.Reading{Err: "NVML hangs in f", Certain: true}, want: "NVML hangs in f"},
			{times: 2, reading: good, want: "hangs"}, {reading: good}}},
		{"three crashes in ten minutes pause", []step{
			{reading: good}, {crash: "NVML crashes in f"}, {after: sec(60), crash: "NVML crashes in f"},
			{after: sec(60), crash: "NVML crashes in f", want: "NVML failed 3 times within 10m0s, the last time: NVML crashes in f"},
			{after: sec(60), times: 2, reading: good, want: "NVML failed"}, {reading: good}}},
		{"the operator's word", []step{{reading: ecc(1)}, {xid: 48, want: "XID 48"}, {clear: true}, {reading: ecc(1)}, {reading: ecc(2), want: "uncorrectable"}}},
		{"an XID that nobody knows pauses", []step{
			{xid: 4242, want: "XID 4242: an XID that the policy does not know"},
			{after: sec(60), times: 2, reading: good, want: "XID 4242"}, {reading: good}}},
		{"one failed reading is nothing, two are", []step{
			{reading: good}, {reading: unread}, {reading: good}, {reading: unread}, {reading: unread, want: "cannot be read: ERROR_UNKNOWN"},
			{times: 2, reading: good, want: "cannot be read"}, {reading: good}}},
		{"a GPU that has never answered", []step{
			{reading: unread, want: "cannot be read"}, {times: 2, reading: good, want: "cannot be read"}, {reading: good}}},
		{"uncorrectable errors without an XID may have spread", []step{
			{reading: ecc(0)}, {reading: ecc(2), want: "uncorrectable memory errors"}, {after: time.Hour, times: 100, reading: ecc(2), want: "uncorrectable"},
			{times: 2, reading: ecc(0), want: "uncorrectable"}, {reading: ecc(0)}}},
		{"uncorrectable errors that the driver says were contained", []step{
			{reading: ecc(0)}, {reading: ecc(2), want: "uncorrectable memory errors"}, {after: sec(5), xid: 94, want: "uncorrectable"},
			{times: 2, reading: ecc(2), want: "uncorrectable"}, {reading: ecc(2)}}},
		{"errors that keep coming", []step{
			{xid: 94}, {reading: ecc(0)}, {reading: ecc(1), want: "uncorrectable"}, {reading: ecc(2), want: "uncorrectable"},
			{times: 2, reading: ecc(2), want: "uncorrectable"}, {reading: ecc(3), want: "uncorrectable"},
			{times: 2, reading: ecc(3), want: "uncorrectable"}, {reading: ecc(3)}}},
		{"an XID from before a reset contains no errors of after it", []step{
			{xid: 94}, {reading: ecc(0)}, {reloaded: true}, {reading: ecc(0)}, {reading: ecc(1), want: "uncorrectable"},
			{after: sec(5), times: 9, reading: ecc(1), want: "uncorrectable"}}},
		{"errors from before the plugin's time", []step{{reading: ecc(7)}, {times: 5, reading: ecc(7)}}},
		{"no spare rows left", []step{
			{reading: health.Reading{RemapFailed: true}, want: "must be replaced"},
			{times: 50, reading: health.Reading{RemapFailed: true}, want: "must be replaced"}}},
		{"an ignored XID", []step{{xid: 120}, {reading: good}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := machine(t, func(c *health.Config) { c.Ignored = []uint64{120} })
			now := time.Unix(1_700_000_000, 0)
			for i, st := range tc.steps {
				now = now.Add(st.after)
				switch {
				case st.xid != 0:
					m.XID(gpu, st.xid, now)
				case st.reloaded:
					m.Reloaded()
				case st.clear:
					m.Clear(gpu)
				case st.crash != "":
					m.Crashed(gpu, st.crash, now)
				default:
					for j := range max(st.times, 1) {
						if j > 0 {
							now = now.Add(5 * time.Second)
						}
						m.Observe(gpu, st.reading, now)
					}
				}
				got := m.Reason(gpu)
				if st.want == "" {
					require.Empty(t, got, "step %d", i)
				} else {
					require.Contains(t, got, st.want, "step %d", i)
				}
				require.Empty(t, m.Reason("GPU-2"), "another GPU")
			}
		})
	}
}

// The XIDs that the issue names, and the whole table's form.
func TestDefaultPolicy(t *testing.T) {
	p := health.DefaultPolicy()
	for code, want := range map[uint64]health.Action{
		13: health.Ignore, 31: health.Ignore, 43: health.Ignore, 45: health.Ignore, 68: health.Ignore,
		63: health.Warn, 94: health.Warn, 92: health.Warn,
		74: health.Pause,
		48: health.UntilReset, 64: health.UntilReset, 79: health.UntilReset, 95: health.UntilReset,
		109: health.UntilReset, 119: health.UntilReset, 120: health.UntilReset,
		// What newer GPUs report: RESTART_APP and IGNORE of the catalogue, and
		// RESET_GPU.
		25: health.Ignore, 60: health.Ignore, 80: health.Ignore, 99: health.Ignore, 105: health.Ignore, 106: health.Ignore,
		126: health.Ignore, 135: health.Ignore, 139: health.Ignore, 141: health.Ignore,
		157: health.Warn, 161: health.Warn, 155: health.UntilReset, 156: health.UntilReset,
	} {
		require.Equal(t, want, p[code].Action, "XID %d", code)
	}
	for code, rule := range p {
		require.NotEmpty(t, rule.Meaning, "XID %d", code)
		require.False(t, strings.HasSuffix(rule.Meaning, "."), "XID %d", code)
	}
	p[79] = health.Rule{}
	require.Equal(t, health.UntilReset, health.DefaultPolicy()[79].Action, "callers get a table of their own")
}

func TestNewNamesEveryBadField(t *testing.T) {
	_, err := health.New(health.Config{MaxQuiet: -1})
	for _, want := range []string{"Policy", "GoodReadings", "BadReadings", "StormCount", "Quiet", "Relapse", "StormWindow", "MaxQuiet"} {
		require.ErrorContains(t, err, want)
	}
}

func TestRuleThatWasApplied(t *testing.T) {
	m := machine(t, func(c *health.Config) { c.StormCount = 2 })
	now := time.Unix(0, 0)
	require.Equal(t, health.Warn, m.XID(gpu, 94, now).Action)
	require.Equal(t, health.Pause, m.XID(gpu, 94, now).Action)
	require.Equal(t, "until-reset", m.XID(gpu, 79, now).Action.String())
}

// Whatever happens to a GPU, restarts of the plugin included: a fault that needs a reset never ends without
// proof, and a GPU of which nothing bad was heard for long is healthy unless
// it needs a reset.
func TestMachineProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := health.DefaultConfig()
		m, err := health.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Unix(1_700_000_000, 0)
		needs, lost := false, false
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "after")) * time.Second)
			switch what := rapid.SampledFrom([]string{"good", "good", "good", "lost", "err", "reset xid", "pause xid", "warn xid", "reloaded", "restart", "reboot"}).Draw(t, "what"); what {
			case "good":
				m.Observe(gpu, health.Reading{}, now)
				if lost {
					needs, lost = false, false // a proof
				}
			case "lost":
				m.Observe(gpu, health.Reading{Lost: true}, now)
				lost = true
			case "err":
				m.Observe(gpu, health.Reading{Err: "x"}, now)
			case "reset xid":
				m.XID(gpu, 95, now)
				needs = true
			case "pause xid":
				m.XID(gpu, 74, now)
			case "warn xid":
				m.XID(gpu, 94, now)
			case "reloaded":
				m.Reloaded()
				needs = false
			case "restart", "reboot":
				saved := m.Save(gpu)
				if m, err = health.New(cfg); err != nil {
					t.Fatal(err)
				}
				raw, err := json.Marshal(saved)
				if err != nil {
					t.Fatal(err)
				}
				saved = health.Saved{}
				if err := json.Unmarshal(raw, &saved); err != nil {
					t.Fatal(err)
				}
				m.Restore(gpu, saved, what == "reboot")
				needs = needs && what == "restart"
			}
			if needs && m.Reason(gpu) == "" {
				t.Fatal("healthy without the reset that it needs")
			}
			if lost && m.Reason(gpu) == "" {
				t.Fatal("healthy while lost")
			}
		}
		for range 3 * cfg.GoodReadings {
			now = now.Add(cfg.MaxQuiet)
			m.Observe(gpu, health.Reading{}, now)
			needs = needs && !lost
		}
		if got := m.Reason(gpu); (got != "") != needs {
			t.Fatal(fmt.Sprintf("after long quiet: %q, needs a reset: %v", got, needs))
		}
	})
}

// Reservations look at a GPU out of turn; that must not hurry its recovery.
func TestReadingsInQuickSuccessionCountOnce(t *testing.T) {
	m := machine(t, func(c *health.Config) { c.Every = 4 * time.Second })
	now := time.Unix(1_700_000_000, 0)
	m.Observe(gpu, health.Reading{Lost: true}, now)
	for range 10 {
		now = now.Add(100 * time.Millisecond)
		m.Observe(gpu, health.Reading{}, now)
	}
	require.Contains(t, m.Reason(gpu), "lost")
	for range 3 {
		require.Contains(t, m.Reason(gpu), "lost")
		now = now.Add(5 * time.Second)
		m.Observe(gpu, health.Reading{}, now)
	}
	require.Empty(t, m.Reason(gpu))
	m.Observe(gpu, health.Reading{Err: "x"}, now)
	m.Observe(gpu, health.Reading{Err: "x"}, now.Add(time.Second))
	require.Empty(t, m.Reason(gpu), "two failures of one moment")
	m.Observe(gpu, health.Reading{Err: "x"}, now.Add(5*time.Second))
	require.NotEmpty(t, m.Reason(gpu))
}
