package state_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/state"
)

var updateBaseline = flag.Bool("update-baseline", false, "record the baseline of this feature level if there is none")

// A baseline is a log and the snapshot of the state that it makes, as they were recorded at
// a feature level. Every later version must make the same state of them.

// baselineFile returns the file of a baseline: kind is log or snapshot.
func baselineFile(level int, kind string) string {
	return filepath.Join("testdata", "baseline", fmt.Sprintf("level-%d.%s", level, kind))
}

// baselineChanged is shown where a baseline does not give the recorded state.
const baselineChanged = `the recorded baseline of feature level %[1]d gives another result now.
Until release 0.1.0 formats and rules are free. Record the baseline again:

  rm controller/state/testdata/baseline/level-%[1]d.* && go test ./controller/state -run TestBaselines -update-baseline

From the first release with this level on, this is a fault: servers of two versions would have different
states. Keep the effect of the recorded commands, and give a new rule or format a command or field of
its own, at a higher feature level (state.FeatureLevel).`

// baselineEntry is a line of a recorded log: an entry of the Raft log and what became of it.
type baselineEntry struct {
	Index   uint64
	Type    state.Type
	Changed bool
	Error   state.Code `json:",omitempty"`
	Command json.RawMessage
}

func (e baselineEntry) data() []byte { return append([]byte{byte(e.Type)}, e.Command...) }

// TestBaselines: the log of every feature level gives the recorded results and state, from
// its beginning and from a snapshot in its middle, and the recorded snapshot is that state.
func TestBaselines(t *testing.T) {
	if *updateBaseline {
		recordBaseline(t)
	}
	types, tables := map[state.Type]bool{}, map[state.Table]bool{}
	for level := 1; level <= state.FeatureLevel; level++ {
		t.Run(fmt.Sprint("level=", level), func(t *testing.T) {
			message := fmt.Sprintf(baselineChanged, level)
			entries := readBaseline(t, level)
			want, err := os.ReadFile(baselineFile(level, "snapshot"))
			require.NoError(t, err)

			s, err := state.New()
			require.NoError(t, err)
			for i, e := range entries {
				res := s.Apply(e.Index, e.data())
				want, got := e, resultOf(e, res)
				want.Command, got.Command = nil, nil
				require.Equal(t, want, got, "%s\n\n%s", message, e.Command)
				types[e.Type] = types[e.Type] || e.Changed
				if i%50 == 49 {
					s = restored(t, snapshotOf(t, s))
				}
			}

			// Both are written by this version: a field or table that is new may be in neither.
			recorded, err := state.New()
			require.NoError(t, err)
			info, err := recorded.Restore(bytes.NewReader(want), state.FeatureLevel)
			require.NoError(t, err, message)
			require.Equal(t, level, info.FeatureLevel)
			for table := range info.Rows {
				tables[table] = true
			}
			require.Equal(t, string(snapshotOf(t, recorded)), string(snapshotOf(t, s)), message)
			if level == state.FeatureLevel && info.Version == state.SnapshotVersion {
				require.Equal(t, string(want), string(snapshotOf(t, s)), message)
			}
		})
	}
	const incomplete = "no baseline has %v: raise state.FeatureLevel if the last level was released, and record its baseline (see TestBaselines)"
	require.Empty(t, slices.DeleteFunc(state.Types(), func(typ state.Type) bool { return types[typ] }), incomplete, "commands of these types")
	require.Empty(t, slices.DeleteFunc(state.Tables(), func(table state.Table) bool { return tables[table] }), incomplete, "rows of these tables")
}

func resultOf(e baselineEntry, res state.Result) baselineEntry {
	e.Changed, e.Error = res.Changed, ""
	if res.Err != nil {
		e.Error = res.Err.Code
	}
	return e
}

func readBaseline(t *testing.T, level int) []baselineEntry {
	data, err := os.ReadFile(baselineFile(level, "log"))
	require.NoError(t, err, "record the baseline: go test ./controller/state -run TestBaselines -update-baseline")
	var entries []baselineEntry
	for line := range bytes.Lines(data) {
		var e baselineEntry
		require.NoError(t, json.Unmarshal(line, &e))
		entries = append(entries, e)
	}
	return entries
}

// recordBaseline writes the baseline of this feature level. It never replaces one.
func recordBaseline(t *testing.T) {
	for _, kind := range []string{"log", "snapshot"} {
		require.NoFileExists(t, baselineFile(state.FeatureLevel, kind), "the baseline of a released feature level must not change; see baselineChanged")
	}
	l := full(t)
	for seed := 0; seed < 200 || !covered(t, l); seed++ {
		require.Less(t, seed, 20_000, "the drawn commands do not cover every type and table: see drawCommand")
		c := rapid.Custom(func(r *rapid.T) any { return drawCommand(r, l.store.View()) }).Example(seed)
		if command, ok := c.(state.Command); ok && seed%5 == 0 {
			if decided, err := state.Decide(command, state.Decision{Kind: "scale", Time: epoch, Model: "m0", Reason: "recorded"}); err == nil {
				c = decided // else its content is rejected before the log
			}
		}
		l.apply(c)
	}
	var lines bytes.Buffer
	s, err := state.New()
	require.NoError(t, err)
	for i, data := range l.entries {
		e := baselineEntry{Index: uint64(i + 1), Type: state.Type(data[0]), Command: data[1:]}
		line, err := json.Marshal(resultOf(e, s.Apply(e.Index, data)))
		require.NoError(t, err)
		lines.Write(append(line, '\n'))
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(baselineFile(1, "log")), 0o755))
	require.NoError(t, os.WriteFile(baselineFile(state.FeatureLevel, "log"), lines.Bytes(), 0o644))
	require.NoError(t, os.WriteFile(baselineFile(state.FeatureLevel, "snapshot"), snapshotOf(t, s), 0o644))
	for i, e := range readBaseline(t, state.FeatureLevel) {
		require.Equal(t, l.entries[i], e.data(), "entry %d is not what was applied", i+1)
	}
}

// covered returns whether a command of every type changed something, and every table has a
// row.
func covered(t *testing.T, l *log) bool {
	info, err := state.Inspect(bytes.NewReader(snapshotOf(t, l.store)), state.FeatureLevel)
	require.NoError(t, err)
	if len(info.Rows) < len(state.Tables()) {
		return false
	}
	changed := map[state.Type]bool{}
	s, err := state.New()
	require.NoError(t, err)
	for i, data := range l.entries {
		if s.Apply(uint64(i+1), data).Changed {
			changed[state.Type(data[0])] = true
		}
	}
	return len(changed) == len(state.Types())
}
