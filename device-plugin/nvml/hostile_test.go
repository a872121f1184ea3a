package nvml_test

import (
	"context"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/nvml"
	"remuda/internal/testkit/fakenvml"
)

// Whatever a worker does, it is an error of that moment.
func TestHostileWorkers(t *testing.T) {
	for _, tc := range []struct{ name, script, want string }{
		{"it writes garbage", `echo garbage >&3; exec cat`, "unreadable message"},
		{"it writes without end", `yes | tr -d "\n" >&3`, "a message of more than 1048576 bytes"},
		{"it answers nothing", `echo "{\"ready\":true}" >&3; n=0; while read r; do n=$((n+1)); echo "{\"id\":$n}" >&3; done`, "without a look"},
		{"it answers something else", `echo "{\"ready\":true}" >&3; read r; echo "{\"id\":7}" >&3; exec cat`, "request 7 instead of 1"},
		{"it listens to nobody", `echo "{\"ready\":true}" >&3; exec 0<&-; sleep 0.2; exit 4`, "exit status 4"},
		{"it prints what is no text", `printf "\\377\\376 no" >&2; exit 1`, "no"},
		// A program that a library started holds the pipe of the answers.
		{"it leaves a child behind", `sleep 15 & exit 3`, "the NVML worker ended: exit status 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := source(t, "", func(c *nvml.Config) { c.Command = []string{"/bin/sh", "-c", tc.script} })
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := s.GPUs(ctx)
			require.ErrorContains(t, err, tc.want)
			require.True(t, utf8.ValidString(err.Error()), "%q", err)
		})
	}
}

// A caller that is in a hurry, as a scrape, costs nobody the worker.
func TestImpatientCallers(t *testing.T) {
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, nil)
	look(t, s)
	before := workers(t, lib.Path)
	require.Len(t, before, 1)
	lib.Set("hang=nvmlDeviceGetUtilizationRates")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Samples(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	lib.Set("hang=")
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s))
	require.Equal(t, before, workers(t, lib.Path))
}

// While NVML is initialised anew to find a lost GPU, however long that takes,
// the others are read as before.
func TestSearchForALostGPUDoesNotDisturb(t *testing.T) {
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, nil)
	look(t, s)
	old := workers(t, lib.Path)
	lib.Set("count=2", "gpu1.lost=1", "hang=nvmlInit_v2")
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		gpus, err := s.GPUs(ctx)
		cancel()
		require.NoError(t, err)
		require.Len(t, gpus, 2)
		require.Empty(t, gpus[0].Unhealthy)
		require.Contains(t, gpus[1].Unhealthy, "lost")
		_, err = s.Samples(t.Context())
		require.NoError(t, err)
	}
	require.Len(t, workers(t, lib.Path), 2, "one is used and one is being initialised")
	lib.Set("hang=")
	until(t, "the new one to take over", func() bool {
		look(t, s)
		now := workers(t, lib.Path)
		return len(now) == 1 && now[0] != old[0]
	})
	lib.Set("gpu1.lost=")
	until(t, "the GPU to be back", func() bool { return look(t, s)[gpu1] == "" })
	require.NoError(t, s.Close())
	require.Empty(t, workers(t, lib.Path))
}

// A program that fails over and over does not make the plugin look over and over.
func TestXIDsOfProgramsAreNoChange(t *testing.T) {
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, nil)
	look(t, s)
	changed, done := make(chan struct{}, 1000), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(done); s.Watch(ctx, func() { changed <- struct{}{} }) }()
	defer func() { cancel(); <-done }()
	for begun := false; !begun; { // a warning matters, and tells when Watch has begun
		lib.XID(0, 92)
		select {
		case <-changed:
			begun = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	lib.XID(0, 63)
	until(t, "the warnings to be through", func() bool { return count(t, s, "remuda_device_xid_total") == 2 })
	look(t, s) // waits for an event that is being taken in
	for len(changed) > 0 {
		<-changed
	}
	xids := count(t, s, "remuda_device_xid_total")
	lib.XID(0, 31)
	until(t, "the XID to be counted", func() bool { return count(t, s, "remuda_device_xid_total") == xids+1 })
	lib.XID(0, 43)
	until(t, "the next one as well", func() bool { return count(t, s, "remuda_device_xid_total") == xids+2 })
	look(t, s)
	require.Empty(t, changed)
}

// A GPU that cannot be named for a while was not reset by that.
func TestNameThatIsMissingIsNoReset(t *testing.T) {
	lib := fakenvml.Build(t)
	s := source(t, lib.Path, nil)
	look(t, s)
	wait := watch(t, s, lib)
	lib.XID(0, 119)
	wait()
	require.Contains(t, look(t, s)[gpu0], "XID 119")
	lib.Set("gpu0.error=999")
	for _, pid := range workers(t, lib.Path) {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	for range 3 {
		look(t, s)
	}
	require.EqualValues(t, 1, value(t, s, "remuda_device_nvml_unnamed"))
	lib.Set("gpu0.error=")
	until(t, "it to have a name again", func() bool {
		look(t, s)
		return value(t, s, "remuda_device_nvml_unnamed") == 0
	})
	for range 4 {
		require.Contains(t, look(t, s)[gpu0], "XID 119")
	}
}

// value is that of a gauge without labels.
func value(t *testing.T, s *nvml.Source, name string) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(s))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}
