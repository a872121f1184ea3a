package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	deviceplugin "remuda/device-plugin"
)

// versionTimeout is how long the plugin gets to print its version. It needs some 10 ms, and takes no
// time of NVML's.
const versionTimeout = 2500 * time.Millisecond

func runVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-version")
	cmd.WaitDelay = 200 * time.Millisecond // a child of it may hold its output
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it ended well
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	text := strings.TrimSpace(string(out))
	if err != nil && text != "" {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return text, err
}

const checkFile = "plugin file"

// findPlugin returns the path of the plugin's file, empty if there is none that can be run.
func (r *round) findPlugin() string {
	const check = checkFile
	dirs := slices.Clone(r.cfg.PluginDirs)
	if r.node.PluginDir != "" {
		dirs = []string{r.node.PluginDir} // no other counts
	}
	if len(dirs) == 0 {
		r.add(check, Problem, "Nomad has no plugin_dir, or did not report it", "set plugin_dir in the agent's configuration, or -plugin-dir")
		return ""
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		r.checkNeighbours(dir, entries)
		path := filepath.Join(dir, deviceplugin.Name)
		info, err := os.Stat(path)
		switch {
		case err != nil:
			continue
		case !info.Mode().IsRegular():
			r.add(check, Problem, path+" is not a regular file", "replace it with the plugin's file")
			return ""
		case info.Mode().Perm()&0o111 == 0 || unix.Access(path, unix.X_OK) != nil:
			r.add(check, Problem, path+" is not executable, so Nomad ignores it", "chmod 0755 "+path)
			return ""
		}
		return path
	}
	r.add(check, Problem, fmt.Sprintf("no %s in %s", deviceplugin.Name, strings.Join(dirs, ", ")),
		fmt.Sprintf("install -m 0755 remuda-device %s, and restart the agent", filepath.Join(dirs[0], deviceplugin.Name)))
	return ""
}

// checkPlugin asks the plugin for its version, and tells whether the plugin runs.
func (r *round) checkPlugin(path string) bool {
	text, err := r.cfg.PluginVersion(r.ctx, path)
	switch {
	case errors.Is(err, context.DeadlineExceeded): // what it says of the GPUs matters more
		r.add(checkFile, Warning, fmt.Sprintf("%s -version: no answer within %s", path, versionTimeout), "check the load of the machine and its disk, and run doctor again")
	case err != nil:
		do := "install the file that was built for this machine (it needs glibc)"
		if strings.Contains(err.Error(), "symbol lookup error") {
			do = "NVML's functions must be bound lazily: remove LD_BIND_NOW from Nomad's environment, or build the plugin with -ldflags=-extldflags=-Wl,-z,lazy"
		}
		r.add(checkFile, Problem, path+" does not run: "+err.Error(), do)
		return false
	case r.cfg.Version != "" && !strings.Contains(text, r.cfg.Version):
		r.add(checkFile, Warning, fmt.Sprintf("%s is %q and this program is version %s", path, text, r.cfg.Version), "install both from the same build")
	default:
		r.add(checkFile, OK, path, "")
	}
	return true
}

// checkNeighbours looks for files that Nomad would take for plugins and that
// get in the way.
func (r *round) checkNeighbours(dir string, entries []os.DirEntry) {
	for _, e := range entries {
		name := e.Name()
		switch {
		case name == deviceplugin.Name:
		case strings.Contains(name, "remuda") && strings.Contains(name, "device"):
			r.add("plugin name", Problem, fmt.Sprintf("%s: Nomad uses the file name %q as the plugin's name and for its plugin block",
				filepath.Join(dir, name), name), fmt.Sprintf("rename it to %s, or remove it if that file exists as well", deviceplugin.Name))
		case strings.Contains(name, "nvidia") && (strings.Contains(name, "gpu") || strings.Contains(name, "device")):
			r.add("plugin name", Warning, filepath.Join(dir, name)+" is another plugin for the same GPUs, which are then offered twice", "remove one of the two")
		}
	}
}
