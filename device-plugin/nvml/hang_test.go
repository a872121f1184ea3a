package nvml_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/device-plugin/nvml"
	"remuda/internal/testkit/fakenvml"
	"remuda/internal/testkit/proclog"
)

// A worker that somebody kills once is replaced, and the GPU stays healthy; the node's too.
// An XID is seen at once from when on the log says that the node's successor waits for them. One that came
// before, while no worker waited, is lost: NVML tells nothing of the past.
func TestKilledWorker(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	log := &proclog.Buffer{}
	s := source(t, lib.Path, func(c *nvml.Config) { c.Logger = log.Logger() })
	look(t, s)
	before := []int{}
	kill := func() {
		before = workers(t, lib.Path)
		for _, pid := range before {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	successors := func() []int {
		return slices.DeleteFunc(workers(t, lib.Path), func(pid int) bool { return slices.Contains(before, pid) })
	}
	waiting := func(times int) func() bool {
		return func() bool { return strings.Count(log.String(), "XIDs of that time are not seen") == times }
	}
	seen, quickest := 0, time.Hour // the machine may be busy
	xid := func() {
		begin := time.Now()
		lib.XID(0, 31) // a program's fault
		seen++
		until(t, "the XID", func() bool { return total(t, s, "remuda_device_xid_total") == seen })
		quickest = min(quickest, time.Since(begin))
	}
	for i := range 3 {
		kill()
		until(t, "others to read the GPUs", func() bool {
			require.Equal(t, map[string]string{gpu0: "", gpu1: ""}, look(t, s))
			return len(successors()) == 3
		})
		samples(t, s, gpu0, gpu1)
		until(t, "the node's successor", waiting(1+i))
		xid()
	}
	require.Less(t, quickest, time.Second)
	lib.Set("hang=nvmlInit_v2")
	kill()
	until(t, "a successor that hangs", func() bool { return len(successors()) > 0 })
	lib.XID(0, 31)
	lib.Set("hang=")
	until(t, "the node's successor", waiting(4))
	xid()
}

// A driver that hangs for the whole node is waited for; the GPUs that are known say so, and NVML goes on
// when it does. The first call waits no longer than a call may hang.
func TestHangingNVML(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("hang=nvmlInit_v2")
	hang := hangTime(t)
	s := source(t, lib.Path, func(c *nvml.Config) { c.Hang, c.GiveUp, c.StartGiveUp = hang, 2*hang, 4*hang })
	until(t, "the call to be named", func() bool {
		_, err := s.GPUs(t.Context())
		require.Error(t, err)
		return strings.Contains(err.Error(), "NVML hangs in nvmlInit")
	})
	lib.Set("hang=")
	until(t, "a GPU", func() bool { gpus, err := s.GPUs(t.Context()); return err == nil && len(gpus) == 1 })
	become(t, s, map[string]string{gpu0: ""})
	lib.Set("hang=nvmlSystemGetDriverVersion")
	until(t, "it to be noticed", func() bool { return value(t, s, "remuda_device_nvml_up") == 0 })
	require.Equal(t, map[string]string{gpu0: ""}, look(t, s), "no call on the GPU hangs")
	lib.Set("hang=")
	until(t, "it to be over", func() bool { return value(t, s, "remuda_device_nvml_up") == 1 })
}

// A call that hangs takes its GPU only. When it returns the same process goes on.
func TestHangOfOneGPU(t *testing.T) {
	t.Parallel()
	hang := hangTime(t)
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	s := source(t, lib.Path, func(c *nvml.Config) { c.Hang, c.GiveUp = hang, time.Hour })
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	before := workers(t, lib.Path)
	lib.Set("gpu1.hang=nvmlDeviceGetTemperature")
	become(t, s, map[string]string{gpu0: "", gpu1: "NVML hangs in nvmlDeviceGetTemperature"})
	require.NotContains(t, samples(t, s, gpu0), gpu1)
	lib.Set("gpu1.hang=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	require.ElementsMatch(t, before, workers(t, lib.Path))
}

// A call that does not return takes its GPU within a second of its beginning, with its name. A call that
// returns then was only slow: the reading that it belongs to gives the GPU back.
func TestLateCallTakesItsGPU(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	log := &proclog.Buffer{}
	s := source(t, lib.Path, func(c *nvml.Config) {
		// With this period there are no three readings that end a fault.
		c.Hang, c.GiveUp, c.Period, c.Health.GoodReadings = time.Hour, time.Hour, time.Hour, 3
		c.Logger = log.Logger()
	})
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	taken := time.Hour // the best of a few attempts, because the machine may be busy
	for attempt := 0; attempt < 5 && taken >= time.Second; attempt++ {
		lib.Set("gpu1.hang=nvmlDeviceGetTemperature")
		begin := time.Now()
		_, err := s.Samples(t.Context()) // begins a reading
		require.NoError(t, err)
		become(t, s, map[string]string{gpu0: "", gpu1: "NVML has not returned from nvmlDeviceGetTemperature"})
		taken = min(taken, time.Since(begin))
		calls := series(t, s, "remuda_device_nvml_call_seconds")
		require.Len(t, calls, 1)
		require.Equal(t, "nvmlDeviceGetTemperature", calls[0].GetLabel()[0].GetValue())
		require.Equal(t, gpu1, calls[0].GetLabel()[1].GetValue())
		lib.Set("gpu1.hang=")
		become(t, s, map[string]string{gpu0: "", gpu1: ""})
		require.Zero(t, count(t, s, "remuda_device_nvml_call_seconds"))
	}
	require.Less(t, taken, time.Second)
	require.Zero(t, total(t, s, "remuda_device_nvml_faults_total"), "it was none")
	require.Contains(t, log.String(), "no task gets it until the call returns")
}

// At a start the list does not wait for a GPU of which NVML is late, and names it.
func TestStartWhileNVMLIsLate(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	dir, root := filepath.Join(t.TempDir(), "health"), t.TempDir()
	boot := filepath.Join(root, "proc/sys/kernel/random/boot_id")
	require.NoError(t, os.MkdirAll(filepath.Dir(boot), 0o755))
	require.NoError(t, os.WriteFile(boot, []byte("one\n"), 0o644))
	start := func() *nvml.Source {
		return source(t, lib.Path, func(c *nvml.Config) { c.Hang, c.GiveUp, c.Dir, c.Root = time.Hour, time.Hour, dir, root })
	}
	s := start()
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	require.NoError(t, s.Close())
	lib.Set("gpu1.hang=nvmlDeviceGetTemperature")
	s = start()
	require.Equal(t, map[string]string{gpu0: "", gpu1: "NVML has not returned from nvmlDeviceGetTemperature"}, look(t, s), "the first answer")
	lib.Set("gpu1.hang=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
}

// A call that is late and goes on hangs: a fault, which ends by good readings only.
func TestLateCallThatHangs(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2")
	hang := max(3*time.Second, hangTime(t))
	s := source(t, lib.Path, func(c *nvml.Config) { c.Hang, c.GiveUp, c.Health.GoodReadings = hang, time.Hour, 1<<30 })
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	lib.Set("gpu1.hang=nvmlDeviceGetTemperature")
	become(t, s, map[string]string{gpu0: "", gpu1: "NVML has not returned from nvmlDeviceGetTemperature"})
	begin := time.Now()
	become(t, s, map[string]string{gpu0: "", gpu1: "NVML hangs in nvmlDeviceGetTemperature"})
	require.Greater(t, time.Since(begin), time.Second)
	lib.Set("gpu1.hang=")
	samples(t, s, gpu1)
	require.Contains(t, look(t, s)[gpu1], "NVML hangs in nvmlDeviceGetTemperature")
}

// A GPU of which every call takes long, and none too long, is slow. It does not hang, and the others do
// not even notice.
func TestSlowGPU(t *testing.T) {
	t.Parallel()
	lib, hang := fakenvml.Build(t), hangTime(t)
	lib.Set("count=2", fmt.Sprintf("gpu1.slow=%d", (hang/10).Milliseconds())) // a reading takes 20 calls
	log := &proclog.Buffer{}
	s := source(t, lib.Path, func(c *nvml.Config) {
		c.Hang, c.GiveUp = hang, time.Hour
		c.Logger = log.Logger()
	})
	look(t, s)
	begin := time.Now()
	for range 50 {
		look(t, s)
	}
	require.Less(t, time.Since(begin), 25*hang, "only the first call waits for a GPU")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	until(t, "it to be read again", func() bool { return strings.Contains(log.String(), "NVML is slow for this GPU") })
	require.Equal(t, map[string]string{gpu0: "", gpu1: ""}, look(t, s))
	require.NotContains(t, log.String(), "hangs")
	require.Equal(t, 3, starts(t, s), "no process was replaced")
	until(t, "a reading of the other GPU that is quicker by half", func() bool {
		slow, quick := 0.0, 0.0
		for _, m := range series(t, s, "remuda_device_reading_seconds") {
			slow, quick = max(slow, m.GetGauge().GetValue()), m.GetGauge().GetValue()+quick
		}
		require.Greater(t, slow, hang.Seconds())
		return slow > 2*(quick-slow)
	})
}

// One that does not get through a reading at all is no use.
func TestGPUThatIsTooSlow(t *testing.T) {
	t.Parallel()
	lib, hang := fakenvml.Build(t), hangTime(t)
	lib.Set("count=2")
	s := source(t, lib.Path, func(c *nvml.Config) { c.Hang, c.GiveUp = hang, 2*hang })
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	lib.Set(fmt.Sprintf("gpu1.slow=%d", (hang / 4).Milliseconds())) // a reading takes 20 calls
	become(t, s, map[string]string{gpu0: "", gpu1: "NVML is slow"})
	lib.Set("gpu1.slow=")
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
}

// A crash that repeats itself makes its GPU unhealthy with the second one in a row. The process is
// started again less and less often, and the log says so once.
func TestCrashOfOneGPU(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"gpu1.crash=nvmlDeviceGetPowerUsage": "NVML crashes in nvmlDeviceGetPowerUsage: SIGSEGV: segmentation violation",
		"gpu1.abort=nvmlDeviceGetMemoryInfo": "NVML crashes in nvmlDeviceGetMemoryInfo: SIGABRT: abort",
		"gpu1.exit=nvmlDeviceGetName":        "told to exit in nvmlDeviceGetName",
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			lib := fakenvml.Build(t)
			lib.Set("count=2")
			log := &proclog.Buffer{}
			s := source(t, lib.Path, func(c *nvml.Config) {
				c.Retry, c.Rediscover = 100*time.Millisecond, time.Minute
				c.Logger = log.Logger()
			})
			become(t, s, map[string]string{gpu0: "", gpu1: ""})
			begin, before := time.Now(), starts(t, s)
			lib.Set(rule)
			if strings.Contains(rule, "Name") { // called by a new worker only
				for _, pid := range workers(t, lib.Path) {
					require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				}
				before += 2 // the node's and the other GPU's
			}
			become(t, s, map[string]string{gpu0: "", gpu1: want})
			require.NotContains(t, look(t, s)[gpu1], "0x")
			until(t, "it to be started again a few times", func() bool { return starts(t, s) >= before+5 })
			require.Greater(t, time.Since(begin), 1500*time.Millisecond, "the pauses: 0, 100, 200, 400, 800 ms")
			require.LessOrEqual(t, strings.Count(log.String(), "NVML fails for this GPU"), 3)
			require.NotZero(t, count(t, s, "remuda_device_nvml_faults_total"))
		})
	}
}

// A GPU that crashes the worker of the node when it is named is left out, and the others keep their
// XIDs.
func TestCrashWhileAGPUIsNamed(t *testing.T) {
	t.Parallel()
	lib := fakenvml.Build(t)
	lib.Set("count=2", "gpu1.crash=nvmlDeviceRegisterEvents")
	log := &proclog.Buffer{}
	s := source(t, lib.Path, func(c *nvml.Config) {
		c.Rediscover = time.Minute
		c.Logger = log.Logger()
	})
	until(t, "the other GPU", func() bool {
		gpus, err := s.GPUs(t.Context())
		return err == nil && len(gpus) == 1
	})
	until(t, "the XIDs of the other GPU", func() bool {
		lib.XID(0, 95)
		return strings.Contains(look(t, s)[gpu0], "XID 95")
	})
	until(t, "the GPU without a name", func() bool { return value(t, s, "remuda_device_nvml_unnamed") == 1 })
	until(t, "the log to say why", func() bool {
		return strings.Contains(log.String(), "NVML crashes in nvmlDeviceRegisterEvents of GPU 1: SIGSEGV")
	})
}

// A GPU that hangs when it is named is asked for its name less and less often, and the others go on.
// Once it answers it is there.
func TestHangWhileAGPUIsNamed(t *testing.T) {
	t.Parallel()
	lib, hang := fakenvml.Build(t), hangTime(t)
	lib.Set("count=2", "gpu1.hang=nvmlDeviceRegisterEvents")
	s := source(t, lib.Path, func(c *nvml.Config) { c.Rediscover, c.Hang, c.StartGiveUp = hang, hang, time.Hour })
	until(t, "the other GPU", func() bool { gpus, err := s.GPUs(t.Context()); return err == nil && len(gpus) == 1 })
	until(t, "the GPU without a name", func() bool { return value(t, s, "remuda_device_nvml_unnamed") == 1 })
	begin, before := time.Now(), starts(t, s)
	until(t, "two further attempts", func() bool { return starts(t, s) >= before+2 })
	require.Greater(t, time.Since(begin), 3*hang, "the first hangs, and a pause of twice as long follows")
	lib.XID(0, 95)
	until(t, "the XID of the other GPU", func() bool { return strings.Contains(look(t, s)[gpu0], "XID 95") })
	lib.Set("gpu1.hang=")
	until(t, "the GPU", func() bool { gpus, err := s.GPUs(t.Context()); return err == nil && len(gpus) == 2 })
}

// XIDs that come while a GPU hangs, while its worker is replaced and while the node's is, are all seen.
func TestXIDsWhileWorkersAreReplaced(t *testing.T) {
	t.Parallel()
	lib, hang := fakenvml.Build(t), hangTime(t)
	lib.Set("count=3", "gpu2.error=999") // one that has no name yet, so the node's worker is replaced again and again
	s := source(t, lib.Path, func(c *nvml.Config) { c.Hang, c.GiveUp, c.StartGiveUp = hang, hang*5/4, hang*5/4 })
	become(t, s, map[string]string{gpu0: "", gpu1: ""})
	lib.Set("gpu1.hang=*")
	become(t, s, map[string]string{gpu0: "", gpu1: "hangs"})
	before := starts(t, s)
	sent := 0
	for starts(t, s) < before+4 {
		sent++
		lib.XID(0, 1000+sent) // no two are the same, so none is taken for another
		until(t, fmt.Sprintf("XID %d to be seen", sent), func() bool { return count(t, s, "remuda_device_xid_total") == sent })
	}
	lib.XID(1, 119)
	until(t, "the XID of the GPU that hangs", func() bool { return strings.Contains(look(t, s)[gpu1], "XID 119") })
	lib.Set("gpu1.hang=")
	until(t, "it to answer again", func() bool { return !strings.Contains(look(t, s)[gpu1], "hangs") })
	readings(t, s, gpu0, gpu1)
	require.Contains(t, look(t, s)[gpu1], "XID 119", "and it does not get work as if nothing had been")
}
