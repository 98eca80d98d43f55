// The theme searches in a worker, and browsers start no workers for pages opened from files. There, an invisible frame
// runs the worker's script. The theme's offline plugin would load such a script from another host.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const scope = this.frame.contentWindow;
      const load = (source) => new Promise((resolve, reject) => {
        const script = scope.document.createElement("script");
        script.src = source;
        script.onload = resolve;
        script.onerror = reject;
        scope.document.body.append(script);
      });
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      scope.importScripts = (...sources) =>
        sources.reduce((before, each) => before.then(() => load(each)), Promise.resolve());
      this.loaded = load(url);
    }

    postMessage(data) {
      this.loaded.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
