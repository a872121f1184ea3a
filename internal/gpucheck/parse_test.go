package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
)

func TestMapping(t *testing.T) {
	for line, want := range map[string][2]uint64{
		"7f0000000000-7f0000400000 rw-s 00000000 00:01 4711                       /memfd:remuda-gms (deleted)":    {4711, 4 << 20},
		"7f0000000000-7f0000200000 r--s 00200000 00:01 12                         /memfd:fakecuda (deleted)":      {12, 4 << 20},
		"7f0000000000-7f0000200000 r--s 00200000 00:01 12                         /memfd:other (deleted)":         {},
		"7f0000000000-7f0000200000 r--p 00000000 00:00 0":                                                         {},
		"7f0000000000-7f0000200000 r--p 00000000 fd:00 99                         /home/memfd:remuda-gms/library": {},
	} {
		inode, end, ok := mapping(line)
		require.Equal(t, want, [2]uint64{inode, end}, line)
		require.Equal(t, want != [2]uint64{}, ok, line)
	}
}

func TestField(t *testing.T) {
	const line = `2026-11-21T19:00:00.000Z [INFO]  sim: weights mapped again: socket=/x tensors=9 remap=2.5ms check="12.1ms"`
	d, err := field(line, "remap")
	require.NoError(t, err)
	require.Equal(t, 2500*time.Microsecond, d)
	d, err = field(line, "check")
	require.NoError(t, err)
	require.Equal(t, 12100*time.Microsecond, d)
	_, err = field(line, "took")
	require.ErrorContains(t, err, "has no took")
	_, err = field(line, "tensors")
	require.Error(t, err, "it has no unit")
}

func TestLogbook(t *testing.T) {
	l := &logbook{}
	require.Equal(t, "it wrote nothing", l.last())
	var copied strings.Builder
	l.read(strings.NewReader("one\ntwo and one\n"), &copied)
	require.Equal(t, "one\ntwo and one\n", copied.String())
	require.Equal(t, "two and one", l.last())
	line, ok := l.find(time.Time{}, "one")
	require.True(t, ok)
	require.Equal(t, "one", line.text)
	_, ok = l.find(time.Now().Add(time.Hour), "one")
	require.False(t, ok, "not since then")
}

func TestStamp(t *testing.T) {
	arrived := time.Now()
	require.Equal(t, arrived, stamp("panic: no", arrived))
	at := stamp("2026-11-21T19:00:00.123+0100 [INFO]  sim: ready", arrived)
	require.True(t, at.Equal(time.Date(2026, 11, 21, 18, 0, 0, 123e6, time.UTC)), at)
}

func TestAwait(t *testing.T) {
	calls := 0
	require.NoError(t, await(t.Context(), func(context.Context) error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	}))
	require.Equal(t, 3, calls)
	calls = 0
	err := await(t.Context(), func(context.Context) error { calls++; return fmt.Errorf("it %w", errEnded) })
	require.ErrorIs(t, err, errEnded)
	require.Equal(t, 1, calls, "nobody waits for the dead")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err = await(ctx, func(context.Context) error { return errors.New("the last word") })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "the last word")
}

// TestStep: each has its own time, and a failure says what it is of.
func TestStep(t *testing.T) {
	r := &run{report: &Report{}, out: &strings.Builder{}}
	c := &check{r, "9 steps"}
	require.NoError(t, c.step(t.Context(), "fine", time.Minute, func(context.Context) (seen, error) { return note("%d", 7), nil }))
	require.Error(t, c.step(t.Context(), "slow", time.Millisecond, func(ctx context.Context) (seen, error) {
		<-ctx.Done()
		return note("so far"), fmt.Errorf("wait: %w", ctx.Err())
	}))
	c.skip("nothing", "no reason")
	require.Len(t, r.report.Rows, 3)
	require.Equal(t, Pass, r.report.Rows[0].Result)
	require.Equal(t, "7", r.report.Rows[0].Seen)
	require.Equal(t, Fail, r.report.Rows[1].Result)
	require.Equal(t, "so far; it took longer than 1ms (wait: context deadline exceeded)", r.report.Rows[1].Seen)
	require.Equal(t, Skip, r.report.Rows[2].Result)
}

func TestFillHasNoPattern(t *testing.T) {
	whole := make([]byte, 4096)
	end := fill(whole, 1)
	part := make([]byte, 2048)
	fill(part, fill(part[:1024], 1))
	require.Equal(t, end, fill(make([]byte, 2048), fill(make([]byte, 2048), 1)), "the state carries on")
	other := make([]byte, 4096)
	fill(other, 2)
	require.NotEqual(t, xxhash.Sum64(whole), xxhash.Sum64(other))
	require.NotEqual(t, whole[:2048], whole[2048:])
}

func TestSizesComeOutEven(t *testing.T) {
	var asked, aligned uint64
	for _, size := range sizes(64 << 20) {
		asked += size
		aligned += (size + 2<<20 - 1) / (2 << 20) * (2 << 20)
	}
	require.EqualValues(t, 64<<20, aligned)
	require.Less(t, asked, aligned, "one is rounded up")
}

func TestConfig(t *testing.T) {
	cfg := DefaultConfig()
	require.NoError(t, cfg.validate())
	require.Equal(t, meterDriver, cfg.Meter)
	cfg = DefaultConfig()
	cfg.Backend = backendHost
	require.NoError(t, cfg.validate())
	require.Equal(t, meterMemfd, cfg.Meter)
	cfg = Config{Backend: "rocm", Meter: "guess", Memory: 17 << 20}
	err := cfg.validate()
	for _, want := range []string{`-backend is "rocm"`, `-meter is "guess"`, "-memory is 17 MiB", "-weights is 0 B", "-n is 0", "-budget is 0s", "-out and -bin"} {
		require.ErrorContains(t, err, want)
	}
}

func TestMarkedFindsWhatWasStarted(t *testing.T) {
	t.Parallel()
	r := &run{report: &Report{}, out: &strings.Builder{}, mark: "test-" + t.Name() + fmt.Sprint(os.Getpid()), dir: t.TempDir(), logs: t.TempDir()}
	require.NoError(t, r.noneLeft())
	// A shell that leaves a grandchild in a session of its own behind.
	p, err := r.start("shell", false, "/bin/sh", "-c", "setsid sleep 600 & echo started >&2; wait")
	require.NoError(t, err)
	require.NoError(t, await(t.Context(), func(context.Context) error {
		pids, err := marked(r.mark)
		for _, pid := range pids {
			// A process in the middle of execve would not be found: it must be past it.
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if again, _ := marked(r.mark); strings.HasPrefix(string(line), "sleep\x00") && slices.Contains(again, pid) {
				return nil
			}
		}
		return fmt.Errorf("there is no sleep yet among %v (%w)", pids, err)
	}))
	require.NoError(t, p.alive())
	require.NoError(t, r.quiet())
	require.ErrorIs(t, p.alive(), errEnded)
	require.NoError(t, r.noneLeft())
	require.Len(t, r.strays, 1)
	require.Contains(t, r.strays[0], "sleep 600")
}
