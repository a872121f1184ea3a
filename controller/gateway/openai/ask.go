package openai

var (
	includeUsage = []byte(`"include_usage"`)
	askUsage     = []byte(`{"include_usage":true`)
)

// AskUsage returns the request with stream_options that ask for a usage at the end of the stream,
// and whether its client had asked for one already; then it is the body as it was. The body may be
// changed in place. h is the head of the body; it does not fit the result.
func AskUsage(body []byte, h Head) (edited []byte, asked bool) {
	options := h.Options.Of(body)
	switch {
	case len(options) == 0:
		return append(append(append(body[:h.End], `,"stream_options":`...), askUsage...), "}}"...), false
	case options[0] == '{', Null(options):
	default:
		return body, false // the engine will say what is wrong with it
	}
	with := append(make([]byte, 0, len(options)+len(askUsage)+2), askUsage...)
	if options[0] == '{' {
		w := Walk(body[:h.Options.To], h.Options.From, '{')
		for {
			key, v, ok := w.Next()
			if !ok {
				break
			}
			if string(key.Of(body)) != string(includeUsage) {
				with = append(append(with, ','), body[key.From:v.To]...)
				continue
			}
			asked = body[v.From] == 't'
		}
		if asked {
			return body, true
		}
	}
	return Edited(make([]byte, 0, len(body)+len(with)), body, []Edit{{At: h.Options, With: append(with, '}')}}), false
}
