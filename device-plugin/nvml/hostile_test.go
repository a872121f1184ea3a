package nvml_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/nvml"
	"remuda/internal/testkit/fakenvml"
)

// Whatever a worker does, it is an error of that moment.
func TestHostileWorkers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, script, want string }{
		{"it writes garbage", `echo garbage >&3; exec cat`, "unreadable message"},
		{"it writes without end", `yes | tr -d "\n" >&3`, "a message of more than 1048576 bytes"},
		{"it answers nothing", `echo "{}" >&3; n=0; while read r; do n=$((n+1)); echo "{\"id\":$n}" >&3; done`, "without the node"},
		{"it answers something else", `echo "{}" >&3; read r; echo "{\"id\":7}" >&3; exec cat`, "a reply to request 7, which is unknown"},
		{"it listens to nobody", `echo "{}" >&3; exec 0<&-; sleep 0.2; exit 4`, "exit status 4"},
		{"it prints what is no text", `printf "\\377\\376 no" >&2; exit 1`, "no"},
		// A program that a library started holds the pipe of the answers.
		{"it leaves a child behind", `sleep 15 & exit 3`, "the NVML worker ended: exit status 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := source(t, "", func(c *nvml.Config) { c.Command = []string{"/bin/sh", "-c", tc.script} })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := s.GPUs(ctx)
			require.ErrorContains(t, err, tc.want)
			require.True(t, utf8.ValidString(err.Error()), "%q", err)
		})
	}
}

// A caller that is in a hurry, as a scrape, costs nobody the worker.
func TestImpatientCallers(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, nil)
	look(t, s)
	before := workers(t, lib.Path)
	require.Len(t, before, 2)
	lib.Set("hang=nvmlDeviceGetUtilizationRates")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	none, err := s.Samples(ctx)
	require.NoError(t, err)
	require.Empty(t, none)
	lib.Set("hang=")
	readings(t, s, gpu0)
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s))
	require.ElementsMatch(t, before, workers(t, lib.Path))
}

// A sample does not wait for a GPU that was read and has no load, as a lost one.
func TestSampleDoesNotWaitForALostGPU(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	samples(t, s, gpu0, gpu1)
	lib.Set("gpu1.lost=1")
	become(t, s, map[string]string{gpu0: "", gpu1: "lost"})
	quickest := time.Hour // the machine may be busy
	for range 10 {
		begin := time.Now()
		require.NotContains(t, samples(t, s, gpu0), gpu1)
		quickest = min(quickest, time.Since(begin))
	}
	require.Less(t, quickest, 500*time.Millisecond)
}

// While NVML is initialised anew to find a lost GPU, however long that takes, the others are read as
// before.
func TestSearchForALostGPUDoesNotDisturb(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	look(t, s)
	lib.Set("gpu1.lost=1", "hang=nvmlInit_v2")
	become(t, s, map[string]string{gpu0: "", gpu1: "lost"})
	for range 5 {
		samples(t, s, gpu0)
		require.Empty(t, look(t, s)[gpu0])
	}
	lib.Set("hang=", "gpu1.lost=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
}

// A program that fails over and over does not make the plugin read over and over.
func TestXIDsOfProgramsAreNoChange(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, func(c *nvml.Config) { c.Period = time.Hour })
	look(t, s)
	changed := make(chan struct{}, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Watch(ctx, func() { changed <- struct{}{} }) }()
	defer func() { cancel(); <-done }()
	sent := 0
	for begun := false; !begun; { // a warning matters, and tells when Watch has begun
		lib.XID(0, 92)
		sent++
		until(t, "the warning to be counted", func() bool { return total(t, s, "remuda_device_xid_total") == sent })
		begun = len(changed) > 0
	}
	samples(t, s, gpu0) // the last reading for which a warning asked is over
	for len(changed) > 0 {
		<-changed
	}
	for _, xid := range []int{31, 43} {
		lib.XID(0, xid)
		sent++
		until(t, "the XID to be counted", func() bool { return total(t, s, "remuda_device_xid_total") == sent })
	}
	look(t, s) // the last XID is dealt with
	require.Empty(t, changed)
}

// A GPU that cannot be opened for a while was not reset by that.
func TestNameThatIsMissingIsNoReset(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, nil)
	look(t, s)
	lib.XID(0, 119)
	become(t, s, map[string]string{gpu0: "XID 119"})
	lib.Set("gpu0.error=999")
	for _, pid := range workers(t, lib.Path) {
		if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) { // it may be replaced already
			require.NoError(t, err)
		}
	}
	become(t, s, map[string]string{gpu0: "unknown error"})
	until(t, "the node to miss its name", func() bool { return value(t, s, "remuda_device_nvml_unnamed") == 1 })
	lib.Set("gpu0.error=")
	until(t, "it to have a name again", func() bool { return value(t, s, "remuda_device_nvml_unnamed") == 0 })
	readings(t, s, gpu0)
	require.Contains(t, look(t, s)[gpu0], "XID 119")
}
