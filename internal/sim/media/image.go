package media

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/png"
	"strconv"
	"strings"

	"remuda/internal/sim/openai"
	"remuda/internal/sim/sse"
	"remuda/internal/sim/text"
)

// ImageTokens is how many tokens an image is.
const ImageTokens = 64

const (
	maxImages        = 10 // OpenAI's limit
	minSide, maxSide = 16, 2048
)

// Image is the body of /v1/images/generations.
type Image struct {
	Model  *string `json:"model"`
	Prompt string  `json:"prompt"`
	N      *int    `json:"n"`
	Size   *string `json:"size"`
	Format *string `json:"response_format"`
	Stream *bool   `json:"stream"`

	width, height int
}

// DecodeImage reads and checks a request.
func DecodeImage(body []byte) (*Image, *openai.Error) {
	var r Image
	if err := openai.Decode(body, &r); err != nil {
		return nil, err
	}
	if r.Prompt == "" {
		return nil, openai.BadRequest("prompt", "prompt is missing.")
	}
	if n := openai.Or(r.N, 1); n < 1 || n > maxImages {
		return nil, openai.BadRequest("n", "n must be at least 1 and at most %d, got %d.", maxImages, n)
	}
	if f := openai.Or(r.Format, "b64_json"); f != "b64_json" {
		return nil, openai.BadRequest("response_format", "response_format must be \"b64_json\", got %q.", f)
	}
	if openai.Or(r.Stream, false) {
		return nil, openai.BadRequest("stream", "images are not streamed by this engine.")
	}
	size := openai.Or(r.Size, "auto")
	if size == "auto" {
		size = "256x256"
	}
	w, h, _ := strings.Cut(size, "x")
	var werr, herr error
	r.width, werr = strconv.Atoi(w)
	r.height, herr = strconv.Atoi(h)
	if werr != nil || herr != nil || min(r.width, r.height) < minSide || max(r.width, r.height) > maxSide {
		return nil, openai.BadRequest("size", "size must be \"auto\" or like \"256x256\" with sides of %d to %d, got %q.", minSide, maxSide, size)
	}
	return &r, nil
}

// Picture writes the answer to an Image.
type Picture struct {
	Request *Image
	Created int64
}

// ContentType is the answer's.
func (w *Picture) ContentType(stream bool) string { return openai.ContentType(stream) }

// Open, Token, Garbage and Close write nothing: images are not streamed.
func (w *Picture) Open(b []byte, _ []openai.Usage) []byte { return b }

// Token is described at Open.
func (w *Picture) Token(b []byte, _ int, _ text.Piece, _ openai.Usage) []byte { return b }

// Garbage is described at Open.
func (w *Picture) Garbage(b []byte) []byte { return b }

// Close is described at Open.
func (w *Picture) Close(b []byte, _ openai.Usage) []byte { return b }

// Whole is the answer.
func (w *Picture) Whole(tokens [][]text.Piece, total openai.Usage) []byte {
	var data []any
	for _, pieces := range tokens {
		data = append(data, map[string]string{"b64_json": base64.StdEncoding.EncodeToString(w.png(pieces))})
	}
	return sse.JSON(fields{
		"created": w.Created, "data": data, "background": "opaque", "output_format": "png",
		"size": strconv.Itoa(w.Request.width) + "x" + strconv.Itoa(w.Request.height),
		"usage": fields{
			"input_tokens": total.Prompt, "output_tokens": total.Completion, "total_tokens": total.Prompt + total.Completion,
			"input_tokens_details": map[string]int{"text_tokens": total.Prompt, "image_tokens": 0},
		},
	})
}

// png draws a field of eight by eight squares, one for each token.
func (w *Picture) png(pieces []text.Piece) []byte {
	var palette color.Palette
	for _, p := range pieces {
		palette = append(palette, color.RGBA{byte(p.Odds), byte(p.Odds >> 8), byte(p.Odds >> 16), 255})
	}
	const side = 8
	img := image.NewPaletted(image.Rect(0, 0, w.Request.width, w.Request.height), palette)
	for y := range w.Request.height {
		for x := range w.Request.width {
			square := y*side/w.Request.height*side + x*side/w.Request.width
			img.Pix[y*img.Stride+x] = byte(square % len(pieces))
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err) // cannot happen: the sizes are checked and a buffer takes everything
	}
	return b.Bytes()
}
