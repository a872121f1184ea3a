package gpu

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend/host"
	"remuda/internal/sim/memory"
)

// The memory of a simulated GPU is in files without a directory entry (memfds), whose
// names say the GPU. It is in use while some process has one open or mapped: an engine
// (internal/sim/memory), the GPU memory service and its keeper, or an engine that maps
// what the service has (device-plugin/gms/backend/host). However many do, it counts
// once.

// fileID tells memory from other memory.
type fileID struct{ device, inode uint64 }

// piece is one file's memory on one GPU.
type piece struct {
	gpu   string
	bytes uint64
}

// held is the memory that a scan has found.
type held map[fileID]piece

// add counts a file, by the larger of what was seen of it.
func (h held) add(id fileID, p piece) { h[id] = piece{p.gpu, max(p.bytes, h[id].bytes)} }

// on is how many bytes each GPU has in use.
func (h held) on() map[string]uint64 {
	out := map[string]uint64{}
	for _, p := range h {
		out[p.gpu] += p.bytes
	}
	return out
}

// gpuOf reads the name of a file as /proc shows it: "/memfd:NAME:GPU (deleted)".
func gpuOf(path string) (gpu string, ok bool) {
	name, ok := strings.CutPrefix(path, "/memfd:")
	if !ok {
		return "", false
	}
	name = strings.TrimSuffix(name, " (deleted)")
	for _, prefix := range []string{memory.DeviceName, host.MemoryName} {
		if gpu, ok := strings.CutPrefix(name, prefix+":"); ok && gpu != "" {
			return gpu, true
		}
	}
	return "", false
}

// open counts what the process in dir has open. Processes of others, where the plugin
// may not look, are left out, and so is what is closed meanwhile.
func (h held) open(dir string) {
	d, err := os.Open(filepath.Join(dir, "fd"))
	if err != nil {
		return
	}
	names, _ := d.Readdirnames(-1) // of a process that ends: as far as it got
	_ = d.Close()
	for _, name := range names {
		path := filepath.Join(dir, "fd", name)
		target, err := os.Readlink(path)
		if err != nil {
			continue
		}
		gpu, ok := gpuOf(target)
		if !ok {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			continue
		}
		h.add(fileID{st.Dev, st.Ino}, piece{gpu, uint64(st.Size)})
	}
}

// mapped counts what the process in dir has mapped. A line is
// "7f00-7f80 rw-s 00000000 00:01 1234 /memfd:NAME (deleted)": addresses, access, offset,
// device, inode, path (proc_pid_maps(5)).
func (h held) mapped(dir string) {
	f, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return
	}
	defer f.Close() //nolint:errcheck // it was only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		at := strings.Index(line, "/memfd:")
		if at < 0 {
			continue
		}
		gpu, ok := gpuOf(line[at:])
		fields := strings.Fields(line[:at])
		if !ok || len(fields) != 5 {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		major, minor, _ := strings.Cut(fields[3], ":")
		var n [6]uint64
		var bad error
		for i, text := range []string{from, to, fields[2], major, minor, fields[4]} {
			base := 16
			if i == 5 {
				base = 10
			}
			if n[i], err = strconv.ParseUint(text, base, 64); err != nil {
				bad = err
			}
		}
		if bad != nil || n[1] < n[0] {
			continue
		}
		// How far into the file the mapping goes is as much as it takes at least.
		h.add(fileID{unix.Mkdev(uint32(n[3]), uint32(n[4])), n[5]}, piece{gpu, n[2] + n[1] - n[0]})
	}
}
