package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	goversion "github.com/hashicorp/go-version"
	"github.com/hashicorp/hc-install/product"
	"github.com/hashicorp/hc-install/releases"
)

// ReleasesURL is the site of HashiCorp's official releases.
const ReleasesURL = "https://releases.hashicorp.com"

// stalled ends a download that has brought nothing for so long.
const stalled = 30 * time.Second

// unavailable is the error if a release could not be fetched: the network or the release is missing. A release
// that was fetched and refused has another error.
type unavailable struct{ error }

func (u unavailable) Unwrap() error { return u.error }

// releaseDir is where the official release of a tool is kept for later runs.
func (b toolbox) releaseDir(t tool) string {
	return filepath.Join(b.cache, t.name+"_"+t.pinned)
}

// download fetches the official release of the tool's pinned version, checks the signature of its
// checksums and its checksum, and puts the program into releaseDir. Its error is unavailable where
// another way to the tool is as good.
func (b toolbox) download(ctx context.Context, t tool) error {
	dir := b.releaseDir(t)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory for %s: %w", t.name, err)
	}
	// Only a whole program gets its name.
	fresh, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return fmt.Errorf("make a directory for %s: %w", t.name, err)
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	fetching, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	// Without a network the build must not wait long.
	transport.DialContext = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	transport.TLSHandshakeTimeout, transport.ResponseHeaderTimeout = 5*time.Second, 10*time.Second
	fetch := &fetcher{transport: transport, cancel: cancel, progress: func(got, all int64) {
		b.out.now("downloading %s %s from %s: %d of %d MiB", t.name, t.pinned, b.site, got>>20, all>>20)
	}}
	path, err := (&releases.ExactVersion{
		Product:          product.Product{Name: t.name, BinaryName: func() string { return t.name }},
		Version:          goversion.Must(goversion.NewVersion(t.pinned)),
		InstallDir:       fresh,
		LicenseDir:       dir,
		Timeout:          time.Hour,
		ArmoredPublicKey: b.key,
		ApiBaseURL:       b.site,
		HTTPClient:       &http.Client{Transport: fetch},
	}).Install(fetching)
	switch {
	case err == nil:
		return os.Rename(path, filepath.Join(dir, t.name))
	case ctx.Err() != nil:
		return ctx.Err()
	case fetching.Err() != nil:
		return unavailable{context.Cause(fetching)}
	case fetch.failed != nil:
		return unavailable{fetch.failed}
	case errors.Is(err, fs.ErrNotExist):
		// hc-install 0.10.0 loses the error of an archive that it refuses, and finds no program then.
		err = errors.New("its archive does not have the signed checksum, or not the program")
	}
	return fmt.Errorf("the release of %s %s at %s is refused: %w; nothing of it was installed. -releases=\"\" goes without releases", t.name, t.pinned, b.site, err)
}

// fetcher sends the requests of one download, one after the other. It keeps why one failed, and ends the
// download when nothing arrives any more.
type fetcher struct {
	transport http.RoundTripper
	cancel    context.CancelCauseFunc
	progress  func(got, all int64)
	failed    error
}

// RoundTrip implements http.RoundTripper.
func (f *fetcher) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := f.transport.RoundTrip(req)
	if err != nil {
		f.failed = err
		return nil, err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		f.failed = fmt.Errorf("%s answers %s", req.URL, resp.Status)
	}
	resp.Body = &arriving{ReadCloser: resp.Body, of: f, all: resp.ContentLength, idle: time.AfterFunc(stalled, func() {
		f.cancel(fmt.Errorf("%s brought nothing for %s", req.URL, stalled))
	})}
	return resp, nil
}

// arriving is the body of an answer.
type arriving struct {
	io.ReadCloser
	of       *fetcher
	got, all int64
	idle     *time.Timer
}

func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	a.got += int64(n)
	a.idle.Reset(stalled)
	if a.all > 1<<20 {
		a.of.progress(a.got, a.all)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		a.of.failed = err
	}
	return n, err
}

func (a *arriving) Close() error {
	a.idle.Stop()
	return a.ReadCloser.Close()
}
