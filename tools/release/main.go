// Command release builds what a release of remuda consists of: zips, deb and rpm packages, a software bill of
// materials of each program, and SHA256SUMS. The same commit gives the same bytes, in any directory, with the same
// versions of Go and of the C compilers.
//
// Usage: go -C tools/release run . -root DIR [flags]      (make release)
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// products are the programs, each with a zip and packages of its own, as HashiCorp ships plugins.
var products = []product{
	{name: "remuda", about: "GPU inference scheduler for HashiCorp Nomad", files: []string{"jobs/*.hcl"}},
	{name: "remuda-device", about: "Nomad device plugin with several seats on each GPU", cgo: true},
	{name: "remuda-autoscaler", about: "nomad-autoscaler plugin that scales models by their load"},
}

type product struct {
	name string
	// about is what whatis prints.
	about string
	// cgo: the program is built with the C compiler of its architecture. The others need none.
	cgo bool
	// files are more files of the tree that the zip has.
	files []string
}

// compilers are the C compilers by architecture.
var compilers = map[string]string{"amd64": "gcc", "arm64": "aarch64-linux-gnu-gcc"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var r release
	var archs, key string
	flag.StringVar(&r.root, "root", ".", "`directory` of the checkout")
	flag.StringVar(&r.out, "out", "dist", "`directory` for what is built, in the checkout unless it is absolute; it is emptied first")
	flag.StringVar(&r.version, "version", "", "`version` of the release (default: Version of internal/version)")
	flag.StringVar(&archs, "arch", "amd64,arm64", "`architectures`, separated by commas")
	flag.StringVar(&key, "sign", "", "`name` of the gpg key that signs SHA256SUMS (default: no signature)")
	flag.Parse()
	if err := r.run(ctx, strings.Split(archs, ","), key); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// release is one release while it is built.
type release struct {
	root, out string
	version   string
	commit    string
	// date is that of the commit: every file of the release has it.
	date time.Time
}

func (r *release) run(ctx context.Context, archs []string, key string) (err error) {
	if r.root, err = filepath.Abs(r.root); err != nil {
		return err
	}
	if !filepath.IsAbs(r.out) {
		r.out = filepath.Join(r.root, r.out)
	}
	if err := r.identify(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	for _, arch := range archs {
		if compilers[arch] == "" {
			return fmt.Errorf("-arch has %q: must be amd64 or arm64", arch)
		}
		for _, p := range products {
			if err := r.product(ctx, p, arch); err != nil {
				return fmt.Errorf("%s for %s: %w", p.name, arch, err)
			}
		}
	}
	if err := os.RemoveAll(filepath.Join(r.out, "build")); err != nil {
		return err
	}
	return r.sums(ctx, key)
}

var versionLine = regexp.MustCompile(`(?m)^var Version = "(.*)"$`)

// identify finds the version, the commit and its date.
func (r *release) identify(ctx context.Context) error {
	if r.version == "" {
		source, err := os.ReadFile(filepath.Join(r.root, "internal/version/version.go"))
		if err != nil {
			return err
		}
		m := versionLine.FindSubmatch(source)
		if m == nil {
			return errors.New("internal/version/version.go has no line 'var Version = \"…\"'")
		}
		r.version = string(m[1])
	}
	commit, err := r.output(ctx, nil, "git", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	changes, err := r.output(ctx, nil, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	r.commit = strings.TrimSpace(commit)
	if changes != "" {
		r.commit += "+dirty"
		fmt.Fprintln(os.Stderr, "release: the checkout has changes that are not committed: what is built says +dirty and must not be published")
	}
	seconds := os.Getenv("SOURCE_DATE_EPOCH")
	if seconds == "" {
		if seconds, err = r.output(ctx, nil, "git", "log", "-1", "--format=%ct"); err != nil {
			return err
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(seconds), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH is %q: must be seconds since 1970", seconds)
	}
	r.date = time.Unix(n, 0).UTC()
	return nil
}

// product builds a program and everything that ships it.
func (r *release) product(ctx context.Context, p product, arch string) error {
	dir := filepath.Join(r.out, "build", arch)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	binary := filepath.Join(dir, p.name)
	if err := r.compile(ctx, p, arch, binary); err != nil {
		return err
	}
	glibc, err := newestGLIBC(binary)
	if err != nil {
		return err
	}
	modules, err := r.modules(ctx, p, arch)
	if err != nil {
		return err
	}
	if err := r.licences(modules, binary+".licenses"); err != nil {
		return err
	}
	if err := r.bill(p, binary, modules, binary+".cdx.json"); err != nil {
		return err
	}
	if err := r.manual(p, binary+".1.gz"); err != nil {
		return err
	}
	name := fmt.Sprintf("%s_%s_linux_%s", p.name, r.version, arch)
	if err := r.zip(p, binary, filepath.Join(r.out, name+".zip")); err != nil {
		return err
	}
	if err := copyFile(binary+".cdx.json", filepath.Join(r.out, name+".cdx.json")); err != nil {
		return err
	}
	return r.packages(p, arch, dir, glibc)
}

// compile builds the program. Nothing of the machine gets into it but the compilers' versions.
func (r *release) compile(ctx context.Context, p product, arch, binary string) error {
	stamp := "-X remuda/internal/version."
	flags := []string{"-s", "-w", "-buildid=", stamp + "Version=" + r.version, stamp + "Commit=" + r.commit, stamp + "Date=" + r.date.Format(time.RFC3339)}
	env := []string{"GOFLAGS=", "GOEXPERIMENT=", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0"}
	if p.cgo {
		// NVML's functions are looked up when they are called first.
		flags = append(flags, "-extldflags=-Wl,-z,lazy")
		env = append(env, "CGO_ENABLED=1", "CC="+compilers[arch], "CGO_CFLAGS=-O2 -Wno-deprecated-declarations", "CGO_LDFLAGS=")
		if _, err := exec.LookPath(compilers[arch]); err != nil {
			return fmt.Errorf("%w: install it, or take it with tools/debian", err)
		}
	}
	fmt.Printf("%s %s linux/%s\n", p.name, r.version, arch)
	_, err := r.output(ctx, env, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", strings.Join(flags, " "), "-o", binary, "./cmd/"+p.name)
	return err
}

// output runs a command in the checkout.
func (r *release) output(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args[:min(len(cmd.Args), 3)], " "), err)
	}
	return string(out), nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	return cmp.Or(err, os.WriteFile(to, data, 0o644))
}
