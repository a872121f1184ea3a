package devcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	goversion "github.com/hashicorp/go-version"
)

// tool is a program that remuda does not ship.
type tool struct {
	name string
	// minimum is the oldest version that works, with the reason.
	minimum string
	why     string
	// pinned is the version that the tests run with, of which HashiCorp's site has a release; empty for
	// a tool that the site does not have.
	pinned  string
	path    string
	version string
}

var (
	nomadTool = tool{name: "nomad", minimum: "1.11.1", pinned: "1.11.3",
		why: "older schedulers can offer a task no device IDs at all (nomad#27177)"}
	consulTool = tool{name: "consul", minimum: "1.15.0", pinned: "1.22.3",
		why: "the oldest that the pinned client library was tried with"}
	autoscalerTool = tool{name: "nomad-autoscaler", minimum: "0.5.0", pinned: "0.5.0",
		why: "0.4.7 panics on every policy that comes from a file"}
	ollamaTool = tool{name: "ollama", minimum: "0.9.0",
		why: "older ones lack the create API with file digests"}
)

// toolbox finds tools, and gets those that the machine does not have.
type toolbox struct {
	// dirs are where builds may be.
	dirs []string
	// cache has the releases that were downloaded.
	cache string
	// site is the URL of the releases, without a slash at its end; empty downloads nothing. key is the
	// PGP key that signs them, armored; empty is HashiCorp's.
	site, key string
	// checkout is the root of a checkout of remuda, which can build the tools; it may be empty.
	checkout string
	out      *printer
}

func newToolbox(opts Options, out *printer) (toolbox, error) {
	b := toolbox{site: strings.TrimSuffix(opts.Releases, "/"), out: out}
	if opts.ReleasesKey != "" {
		key, err := os.ReadFile(opts.ReleasesKey)
		if err != nil {
			return b, fmt.Errorf("-releases-key: %w", err)
		}
		b.key = string(key)
	}
	if env := os.Getenv(toolsEnv); env != "" {
		b.dirs = append(b.dirs, env)
	}
	// The program may be bin/remuda of a checkout, or be started in one.
	roots := []string{filepath.Join(filepath.Dir(opts.Remuda), "..")}
	if wd, err := os.Getwd(); err == nil {
		roots = append(roots, wd)
	}
	for _, root := range roots {
		b.dirs = append(b.dirs, filepath.Join(root, ".tools", "bin"))
		if info, err := os.Stat(filepath.Join(root, "tools", "build")); err == nil && info.Mode().IsRegular() && b.checkout == "" {
			b.checkout = root
		}
	}
	if cache, err := os.UserCacheDir(); err == nil {
		b.cache = filepath.Join(cache, "remuda")
	} else {
		b.site = "" // there is no place for a release
	}
	return b, nil
}

// get returns the tools: each from PATH, from a directory of builds, or from an earlier download where it
// is new enough, else from a release that it downloads, else from a build in the checkout.
func (b toolbox) get(ctx context.Context, wanted []tool) (map[string]tool, error) {
	found := map[string]tool{}
	var errs []error
	offline := false
	for _, t := range wanted {
		got, err := t.find(ctx, append(slices.Clone(b.dirs), b.releaseDir(t)))
		if err == nil {
			found[t.name] = got
			continue
		}
		var reason error
		if t.pinned != "" && b.site != "" && !offline {
			b.out.now("asking %s for %s %s", b.site, t.name, t.pinned)
			if reason = b.download(ctx, t); reason == nil {
				b.out.note("%s %s, the official release of %s, is in %s", t.name, t.pinned, b.site, b.releaseDir(t))
				found[t.name], err = t.find(ctx, []string{b.releaseDir(t)})
				errs = append(errs, err)
				continue
			}
			if !errors.As(reason, &unavailable{}) {
				return nil, reason
			}
			var network net.Error
			offline = errors.As(reason, &network)
			b.out.note("no release of %s: %v", t.name, reason)
		}
		if b.checkout == "" {
			errs = append(errs, err)
			continue
		}
		if err := b.build(ctx, t); err != nil {
			return nil, err
		}
		found[t.name], err = t.find(ctx, []string{filepath.Join(b.checkout, ".tools", "bin")})
		errs = append(errs, err)
	}
	return found, errors.Join(errs...)
}

// build builds the tool from its pinned module, which takes minutes.
func (b toolbox) build(ctx context.Context, t tool) error {
	b.out.note("building %s from source, which takes minutes the first time", t.name)
	cmd := exec.CommandContext(ctx, filepath.Join(b.checkout, "tools", "build"), t.name)
	// The compilers end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", t.name, err)
	}
	var last []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		b.out.now("%s", line)
		last = append(last[max(0, len(last)-9):], line)
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("build %s with %s: %w; the end of what it printed:\n%s", t.name, cmd.Path, err, strings.Join(last, "\n"))
	}
	return nil
}

var versionPattern = regexp.MustCompile(`v?(\d+\.\d+\.\d+)`)

// find looks for the tool on PATH and then in toolDirs. It takes the first one
// that is new enough.
func (t tool) find(ctx context.Context, toolDirs []string) (tool, error) {
	var seen []string
	candidates := []string{}
	if p, err := exec.LookPath(t.name); err == nil {
		candidates = append(candidates, p)
	}
	for _, dir := range toolDirs {
		candidates = append(candidates, filepath.Join(dir, t.name))
	}
	minimum := goversion.Must(goversion.NewVersion(t.minimum))
	for _, p := range candidates {
		if info, err := os.Stat(p); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			continue
		}
		v, err := t.askVersion(ctx, p)
		if err != nil {
			seen = append(seen, fmt.Sprintf("%s: %v", p, err))
			continue
		}
		if v.LessThan(minimum) {
			seen = append(seen, fmt.Sprintf("%s is version %s", p, v))
			continue
		}
		t.path, t.version = p, v.String()
		return t, nil
	}
	msg := fmt.Sprintf("no %s of version %s or newer (%s) on PATH: install it", t.name, t.minimum, t.why)
	if len(seen) > 0 {
		msg += "; looked at " + strings.Join(seen, ", ")
	}
	return t, errors.New(msg)
}

func (t tool) askVersion(ctx context.Context, path string) (*goversion.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	arg := "version"
	if t.name == "ollama" {
		arg = "--version"
	}
	out, err := exec.CommandContext(ctx, path, arg).CombinedOutput()
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return nil, fmt.Errorf("'%s %s' names no version (%w)", t.name, arg, errors.Join(err, errors.New(firstLine(out))))
	}
	return goversion.NewVersion(string(m[1]))
}

func firstLine(out []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// toolsEnv names a directory with the builds of Nomad, Consul and nomad-autoscaler for `remuda dev`.
const toolsEnv = "REMUDA_TOOLS"
