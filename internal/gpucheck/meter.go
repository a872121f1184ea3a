package gpucheck

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend/cuda"
)

// meter tells how much memory of the GPU is in use.
type meter interface {
	// used is in bytes.
	used() (uint64, error)
	// slack is by how much a reading may be off that should show size bytes more
	// or less.
	slack(size uint64) uint64
	// name says who tells it.
	name() string
	close() error
}

// The meters that Config names.
const (
	meterDriver = "driver"
	meterMemfd  = "memfd"
)

// driverMeter asks the CUDA driver, which knows of everybody. Its own context is
// there from the first reading to the last.
type driverMeter struct{ space *cuda.Space }

func (m driverMeter) used() (uint64, error) {
	free, total, err := m.space.Info()
	return total - free, err
}

// A process that merely initialised the driver, or just died, shows a little.
func (m driverMeter) slack(size uint64) uint64 { return max(size/16, 16<<20) }
func (m driverMeter) name() string             { return "the CUDA driver (cuMemGetInfo)" }
func (m driverMeter) close() error             { return m.space.Close() }

// memfdMeter adds up the shared memory that the processes of this run hold, by
// descriptor or by mapping: it stands in for a driver with the host backend and
// with a fake of the driver.
type memfdMeter struct{ mark string }

// memfdNames are what the memory of the host backend and of cudatest's driver is
// called in /proc.
var memfdNames = []string{"/memfd:remuda-gms", "/memfd:fakecuda"}

func (m memfdMeter) slack(uint64) uint64 { return 0 }
func (m memfdMeter) name() string        { return "the kernel (memfds held by processes of this run)" }
func (m memfdMeter) close() error        { return nil }

func (m memfdMeter) used() (uint64, error) {
	pids, err := marked(m.mark)
	if err != nil {
		return 0, err
	}
	sizes := map[uint64]uint64{} // by inode
	for _, pid := range pids {
		if err := heldBy(pid, sizes); err != nil && !gone(err) {
			return 0, err
		}
	}
	var sum uint64
	for _, size := range sizes {
		sum += size
	}
	return sum, nil
}

// gone tells that a process ended while it was looked at.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

func isMemfd(path string) bool {
	for _, name := range memfdNames {
		if strings.HasPrefix(path, name) {
			return true
		}
	}
	return false
}

// heldBy notes the size of each memfd that a process holds.
func heldBy(pid int, sizes map[uint64]uint64) error {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return err
	}
	for _, fd := range fds {
		path := filepath.Join(dir, "fd", fd.Name())
		if to, err := os.Readlink(path); err != nil || !isMemfd(to) {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			sizes[st.Ino] = max(sizes[st.Ino], uint64(st.Size))
		}
	}
	maps, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		inode, end, ok := mapping(lines.Text())
		if ok {
			sizes[inode] = max(sizes[inode], end)
		}
	}
	return lines.Err()
}

// mapping reads a line of /proc/PID/maps: the inode of a memfd, and how far into
// it the mapping reaches.
func mapping(line string) (inode, end uint64, ok bool) {
	f := strings.Fields(line)
	if len(f) < 6 || !isMemfd(f[5]) {
		return 0, 0, false
	}
	from, to, _ := strings.Cut(f[0], "-")
	a, err1 := strconv.ParseUint(from, 16, 64)
	b, err2 := strconv.ParseUint(to, 16, 64)
	offset, err3 := strconv.ParseUint(f[2], 16, 64)
	inode, err4 := strconv.ParseUint(f[4], 10, 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil || b < a {
		return 0, 0, false
	}
	return inode, offset + b - a, true
}

// markEnv marks the processes of a run: what they start inherits it.
const markEnv = "REMUDA_GPU_CHECK"

// marked lists the living processes that carry the mark.
func marked(mark string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// Other users' processes cannot be read, and are not ours. A dead one
		// that nobody has waited for has an empty environment.
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err == nil && strings.Contains("\x00"+string(raw), "\x00"+markEnv+"="+mark+"\x00") {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
