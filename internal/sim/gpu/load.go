package gpu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	deviceplugin "remuda/device-plugin"
)

// ticksPerSecond is USER_HZ, the unit of CPU times in /proc, which is 100 on
// every Linux architecture that Go supports.
const ticksPerSecond = 100

// procKey tells a process from a later one with the same PID.
type procKey struct {
	pid   int
	start uint64
}

// scanner measures the processes that live on simulated GPUs. A process lives on a GPU when
// its environment, which children inherit, names the GPU in REMUDA_GPU_UUIDS. It is not safe
// for concurrent use.
type scanner struct {
	procDir string
	clock   func() time.Time
	// last is the CPU time of each process at the last scan, in ticks.
	last   map[procKey]uint64
	lastAt time.Time
}

// scan returns the CPU time, in seconds, that the processes of each GPU have used since the
// scan before, and how long ago that was, 0 on the first.
// Processes that vanish while they are read are left out, and so are
// those of other users where the plugin may not look.
func (s *scanner) scan(ctx context.Context) (map[string]float64, time.Duration, error) {
	entries, err := os.ReadDir(s.procDir)
	if err != nil {
		return nil, 0, fmt.Errorf("list processes: %w", err)
	}
	now := s.clock()
	var elapsed time.Duration
	if !s.lastAt.IsZero() {
		elapsed = now.Sub(s.lastAt)
	}
	loads := map[string]float64{}
	seen := map[procKey]uint64{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		dir := filepath.Join(s.procDir, e.Name())
		gpus := gpusOf(dir)
		if len(gpus) == 0 {
			continue
		}
		start, ticks, ok := cpuOf(dir)
		if !ok {
			continue
		}
		key := procKey{pid: pid, start: start}
		seen[key] = ticks
		// A process that is new since the last scan used all its time since.
		used := ticks - min(s.last[key], ticks)
		if s.lastAt.IsZero() {
			used = 0
		}
		share := float64(len(gpus))
		for _, uuid := range gpus {
			loads[uuid] += float64(used) / ticksPerSecond / share
		}
	}
	s.last, s.lastAt = seen, now
	return loads, elapsed, nil
}

// gpusOf returns the GPUs that the process in dir lives on.
func gpusOf(dir string) []string {
	environ, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil {
		return nil
	}
	prefix := []byte(deviceplugin.EnvGPUs + "=")
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if list, ok := bytes.CutPrefix(v, prefix); ok && len(list) > 0 {
			return strings.Split(string(list), ",")
		}
	}
	return nil
}

// cpuOf returns when the process in dir started and the CPU time it has used,
// both in ticks. Fields are counted from behind the command's name, which may
// hold anything (proc_pid_stat(5): utime 14, stime 15, starttime 22).
func cpuOf(dir string) (start, ticks uint64, ok bool) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, 0, false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const first = 3 // the number of fields[0]
	if len(fields) <= 22-first {
		return 0, 0, false
	}
	user, err1 := strconv.ParseUint(fields[14-first], 10, 64)
	system, err2 := strconv.ParseUint(fields[15-first], 10, 64)
	start, err3 := strconv.ParseUint(fields[22-first], 10, 64)
	return start, user + system, err1 == nil && err2 == nil && err3 == nil
}

// sample turns a GPU's load into what its driver would report. Used is the
// GPU memory that is allocated, in bytes; the host memory of processes does not count.
// Utilisation is the CPU time that they used, one busy core
// being a busy GPU; power and temperature follow utilisation.
func sample(g deviceplugin.GPU, used int64, cpuSeconds float64, elapsed time.Duration) deviceplugin.Sample {
	memory := used >> 20
	var busy float64
	if elapsed > 0 {
		busy = min(cpuSeconds/elapsed.Seconds(), 1)
	}
	percent := int64(busy*100 + 0.5)
	const idleShare = 0.1 // of the power limit; what idle data-centre GPUs draw
	power := int64(float64(g.PowerLimitWatts) * (idleShare + (1-idleShare)*busy))
	const idleCelsius, loadCelsius = 30, 45
	temperature := int64(idleCelsius + loadCelsius*busy)
	s := deviceplugin.Sample{
		MemoryUsedMiB:      &memory,
		UtilizationPercent: &percent,
		TemperatureCelsius: &temperature,
	}
	if g.PowerLimitWatts > 0 {
		s.PowerWatts = &power
	}
	return s
}
