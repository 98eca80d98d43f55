// node client.js ADDRESSES: run every scenario with graphpipe-js, and print a JSON line for each.
//
// ADDRESSES is JSON, model → URL. A line is [name, outcome]; an outcome is {ok: value},
// {status: HTTP status} or {error: text}. An array is [dtype, shape, numbers].
// The client's names are broken (they are written as offsets), so tensors are sent by position.

const graphpipe = require("graphpipe");
const ndarray = require("ndarray");

const urls = JSON.parse(process.argv[2]);
const A = ndarray(Int32Array.from({ length: 16 }, (_, i) => i), [1, 16]);
const B = ndarray(new Int32Array(16).fill(3), [1, 16]);

const plain = (response) =>
  response.data.map((each) => [each.dtype, each.shape, Array.from(each.data, String)]);
const infer = async (model, input) => plain(await graphpipe.remote(urls[model], input, "", "", "{}"));
const inferMany = async (model, inputs) => plain(await graphpipe.remote(urls[model], inputs, [], []));

const scenarios = {
  float32: () => infer("id_FP32", ndarray(new Float32Array([1.5, -2, NaN]))),
  float64: () => infer("id_FP64", ndarray(new Float64Array([1.5, NaN, -Infinity]))),
  int32: () => infer("id_INT32", ndarray(new Int32Array([1, -2]))),
  uint16: () => infer("id_UINT16", ndarray(new Uint16Array([1, 65535]))),
  int8: () => infer("id_INT8", ndarray(new Int8Array([1, -128, 127]))),
  photo: () =>
    infer("id_photo", ndarray(Uint8Array.from({ length: 60 }, (_, i) => i), [1, 4, 5, 3])),
  many: () => inferMany("simple", [A, B]),
  big: async () => {
    const numbers = Float32Array.from({ length: 150528 }, (_, i) => i);
    const [output] = (await graphpipe.remote(urls.id_FP32, ndarray(numbers), "", "")).data;
    return Buffer.from(output.data.buffer).equals(Buffer.from(numbers.buffer));
  },
  metadata: async () => {
    const metadata = (await graphpipe.metadata(urls.simple)).data;
    const ios = [...metadata.Inputs, ...metadata.Outputs];
    return { name: metadata.Name, ios: ios.map((io) => [io.Name, io.Type, io.Shape[1]]) };
  },
  error_unknown_model: () => infer("nosuch", A),
  error_missing_input: () => infer("simple", A),
};

const outcome = async (scenario) => {
  try {
    return { ok: await scenario() };
  } catch (error) {
    return error.response ? { status: error.response.status } : { error: String(error) };
  }
};

(async () => {
  for (const [name, scenario] of Object.entries(scenarios)) {
    console.log(JSON.stringify([name, await outcome(scenario)]));
  }
})();
